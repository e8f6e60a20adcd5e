package dev.kvik.notifications

import android.app.Activity
import android.app.NotificationManager
import android.content.ActivityNotFoundException
import android.content.ComponentName
import android.content.Intent
import android.os.Bundle
import android.provider.Settings.ACTION_NOTIFICATION_LISTENER_SETTINGS
import android.view.Menu
import android.view.MenuItem
import android.view.View
import android.widget.Button
import android.widget.ListView
import android.widget.ProgressBar
import android.widget.TextView
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch

/** The list of notifications with the model's verdicts, and what the cache gave. It keeps nothing itself. */
class MainActivity : Activity() {
    private val verdicts by lazy { VerdictAdapter(this) }

    /** While the screen is seen. */
    private var scope: CoroutineScope? = null

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.main)
        val list = findViewById<ListView>(R.id.verdicts)
        list.adapter = verdicts
        list.emptyView = findViewById(R.id.empty)
        findViewById<Button>(R.id.allow).setOnClickListener { allow() }
    }

    override fun onStart() {
        super.onStart()
        val started = CoroutineScope(SupervisorJob() + Dispatchers.Main)
        scope = started
        // Opening and computing go on in the sorter, on other threads; a rotation finds them where they are.
        started.launch { sorter.keepWarm() }
        started.launch { sorter.state.collect { show(it) } }
        findViewById<View>(R.id.access).visibility = if (isAllowed()) View.GONE else View.VISIBLE
    }

    override fun onStop() {
        scope?.cancel()
        super.onStop()
    }

    override fun onCreateOptionsMenu(menu: Menu): Boolean {
        menuInflater.inflate(R.menu.main, menu)
        return true
    }

    override fun onOptionsItemSelected(item: MenuItem): Boolean {
        when (item.itemId) {
            R.id.example -> sorter.offer(example())
            R.id.settings -> startActivity(Intent(this, SettingsActivity::class.java))
            R.id.clear -> scope?.launch { sorter.clear() }
            else -> return super.onOptionsItemSelected(item)
        }
        return true
    }

    private fun allow() {
        try {
            startActivity(Intent(ACTION_NOTIFICATION_LISTENER_SETTINGS))
        } catch (missing: ActivityNotFoundException) {
            tell(R.string.access_no_settings)
        }
    }

    private fun show(state: State) {
        findViewById<TextView>(R.id.prompt).text = promptText(state)
        findViewById<TextView>(R.id.savings).text = savingsText(state)
        val busy = findViewById<ProgressBar>(R.id.busy)
        busy.visibility = if (state.phase == Phase.RESTING) View.INVISIBLE else View.VISIBLE
        val failure = findViewById<TextView>(R.id.failure)
        failure.text = state.failure
        failure.visibility = if (state.failure == null) View.GONE else View.VISIBLE
        verdicts.show(state.verdicts)
    }

    private fun promptText(state: State): String {
        val prepared = state.prepared ?: return getString(R.string.prompt_opening)
        val text = when (prepared.found) {
            Found.KEPT -> R.string.prompt_kept
            Found.CHANGED -> R.string.prompt_changed
            Found.NOTHING -> R.string.prompt_computed
        }
        return getString(text, prepared.tokens, prepared.ms)
    }

    private fun savingsText(state: State): String {
        val savings = Savings.of(state.verdicts) ?: return getString(R.string.savings_none)
        return getString(R.string.savings, savings.verdicts, savings.percent, savings.promptTokens, savings.firstMs)
    }

    private fun isAllowed(): Boolean =
        getSystemService(NotificationManager::class.java)
            .isNotificationListenerAccessGranted(ComponentName(this, NotificationService::class.java))

    private fun example(): Posted {
        val now = System.currentTimeMillis()
        val text = Notification(getString(R.string.example_app), getString(R.string.example_title), getString(R.string.example_body))
        return Posted("example $now", now, text)
    }
}

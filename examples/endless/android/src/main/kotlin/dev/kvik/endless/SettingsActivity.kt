package dev.kvik.endless

import android.app.Activity
import android.content.ActivityNotFoundException
import android.content.Intent
import android.net.Uri
import android.os.Bundle
import android.widget.Button
import android.widget.EditText
import android.widget.RadioGroup
import android.widget.TextView
import dev.kvik.keepReadable
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch

/** The prefix, the model, and where summaries are made. A draft, kept over a rotation, until it is saved. */
class SettingsActivity : Activity() {
    private val scope = screenScope()

    /** The model of the draft; all else of it is in the fields, once they are shown. */
    private var model: String? = null
    private var isShown = false

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.settings)
        actionBar?.setDisplayHomeAsUpEnabled(true)
        findViewById<Button>(R.id.save).setOnClickListener { save() }
        findViewById<Button>(R.id.choose).setOnClickListener { choose() }
        findViewById<Button>(R.id.embedded).setOnClickListener { showModel(null) }
        scope.launch {
            val saved = chats.settings()
            show(savedInstanceState?.let { restored(it, saved) } ?: saved)
        }
    }

    override fun onSaveInstanceState(outState: Bundle) {
        super.onSaveInstanceState(outState)
        if (!isShown) return
        val draft = written()
        outState.putString(PREFIX, draft.prefix)
        outState.putString(MODEL, draft.model)
        outState.putString(SUMMARIES, draft.summaries.name)
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    override fun onNavigateUp(): Boolean {
        finish()
        return true
    }

    @Deprecated("The result API that replaces it is a library of its own.")
    override fun onActivityResult(requestCode: Int, resultCode: Int, data: Intent?) {
        val uri = data?.data
        if (requestCode != CHOOSE || resultCode != RESULT_OK || uri == null) return
        if (keepReadable(uri)) showModel(uri.toString()) else tell(getString(R.string.model_refused))
    }

    private fun restored(state: Bundle, saved: Settings): Settings = Settings(
        state.getString(PREFIX) ?: saved.prefix,
        state.getString(MODEL),
        SummaryContext.entries.firstOrNull { it.name == state.getString(SUMMARIES) } ?: saved.summaries,
    )

    private fun show(settings: Settings) {
        findViewById<EditText>(R.id.prefix).setText(settings.prefix)
        findViewById<RadioGroup>(R.id.summaries)
            .check(if (settings.summaries == SummaryContext.OWN) R.id.summaries_own else R.id.summaries_chat)
        showModel(settings.model)
        isShown = true
    }

    private fun showModel(chosen: String?) {
        model = chosen
        val name = chosen?.let { Uri.parse(it).lastPathSegment } ?: getString(R.string.model_embedded)
        findViewById<TextView>(R.id.model).text = name
    }

    private fun written(): Settings {
        val isOwn = findViewById<RadioGroup>(R.id.summaries).checkedRadioButtonId == R.id.summaries_own
        val prefix = findViewById<EditText>(R.id.prefix).text.toString().trim()
        return Settings(prefix.ifEmpty { Settings().prefix }, model, if (isOwn) SummaryContext.OWN else SummaryContext.CHAT)
    }

    private fun save() {
        if (!isShown) return
        scope.launch {
            chats.change(written())
            finish()
        }
    }

    private fun choose() {
        val intent = Intent(Intent.ACTION_OPEN_DOCUMENT).addCategory(Intent.CATEGORY_OPENABLE).setType("*/*")
        try {
            @Suppress("DEPRECATION")
            startActivityForResult(intent, CHOOSE)
        } catch (missing: ActivityNotFoundException) {
            tell(getString(R.string.model_no_picker))
        }
    }

    private companion object {
        const val PREFIX = "prefix"
        const val MODEL = "model"
        const val SUMMARIES = "summaries"
        const val CHOOSE = 1
    }
}

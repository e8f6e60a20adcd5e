package dev.kvik.endless

import android.app.Activity
import android.os.Bundle
import android.view.Menu
import android.view.MenuItem
import android.view.View
import android.widget.Button
import android.widget.EditText
import android.widget.ListView
import android.widget.TextView
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch

/** One conversation: what was said, the answer as it comes, and the three parts of the prompt. It keeps nothing itself. */
class ChatActivity : Activity() {
    private val exchanges by lazy { ExchangeAdapter(this) }
    private val parts by lazy { PartsPanel(this) }

    /** While the screen is seen. */
    private var scope: CoroutineScope? = null
    private var session: ChatSession? = null

    /** Whether the last state had an answer that came; at first as if one had, so that a draft from before is offered. */
    private var wasAnswering = true

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.chat)
        actionBar?.setDisplayHomeAsUpEnabled(true)
        findViewById<ListView>(R.id.exchanges).adapter = exchanges
        findViewById<Button>(R.id.send).setOnClickListener { send() }
        findViewById<Button>(R.id.stop).setOnClickListener { session?.stop() }
        findViewById<View>(R.id.parts).setOnClickListener { parts.toggle() }
    }

    override fun onStart() {
        super.onStart()
        val started = screenScope()
        scope = started
        started.launch {
            val opened = chats.session(intent.getStringExtra(ID) ?: return@launch finish())
            session = opened
            launch { opened.keepWarm() }
            opened.state.collect { show(it) }
        }
    }

    override fun onStop() {
        scope?.cancel()
        super.onStop()
    }

    override fun onNavigateUp(): Boolean {
        finish()
        return true
    }

    override fun onCreateOptionsMenu(menu: Menu): Boolean {
        menuInflater.inflate(R.menu.chat, menu)
        return true
    }

    override fun onOptionsItemSelected(item: MenuItem): Boolean {
        if (item.itemId != R.id.take_back) return super.onOptionsItemSelected(item)
        takeBack()
        return true
    }

    private fun send() {
        val field = findViewById<EditText>(R.id.question)
        if (session?.ask(field.text.toString().trim()) != null) field.setText("")
    }

    /** The last question is a draft again, and its answer was never given. */
    private fun takeBack() {
        val session = session ?: return
        val said = session.state.value.transcript.exchanges
        if (said.isEmpty() || session.state.value.answering != null) return
        findViewById<EditText>(R.id.question).setText(said.last().question)
        scope?.launch { session.takeBack(said.size - 1) }
    }

    private fun show(state: ChatState) {
        exchanges.show(state)
        parts.show(state)
        val isAnswering = state.answering != null
        findViewById<View>(R.id.send).visibility = if (isAnswering) View.GONE else View.VISIBLE
        findViewById<View>(R.id.stop).visibility = if (isAnswering) View.VISIBLE else View.GONE
        val failure = findViewById<TextView>(R.id.failure)
        failure.text = state.failure
        failure.visibility = if (state.failure == null) View.GONE else View.VISIBLE
        offerDraft(state)
    }

    /** A question that a stop, a kill or a failure left without an answer is in the field again. */
    private fun offerDraft(state: ChatState) {
        if (!state.isLoaded) return
        val isOver = wasAnswering && state.answering == null
        wasAnswering = state.answering != null
        val field = findViewById<EditText>(R.id.question)
        if (isOver && field.text.isEmpty()) field.setText(state.transcript.draft.orEmpty())
    }

    companion object {
        const val ID = "conversation"
    }
}

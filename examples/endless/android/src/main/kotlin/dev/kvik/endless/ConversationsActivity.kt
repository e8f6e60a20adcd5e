package dev.kvik.endless

import android.app.Activity
import android.app.AlertDialog
import android.content.Intent
import android.os.Bundle
import android.text.format.DateUtils
import android.view.LayoutInflater
import android.view.Menu
import android.view.MenuItem
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter
import android.widget.Button
import android.widget.ListView
import android.widget.TextView
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch

/** The list of conversations. They are files: it is there before a model is open. */
class ConversationsActivity : Activity() {
    private val heads = HeadAdapter()
    private var scope: CoroutineScope? = null
    private var dialog: AlertDialog? = null

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.conversations)
        val list = findViewById<ListView>(R.id.conversations)
        list.adapter = heads
        list.emptyView = findViewById(R.id.empty)
        list.setOnItemClickListener { _, _, position, _ -> open(heads.getItem(position).id) }
        list.setOnItemLongClickListener { _, _, position, _ -> askToDelete(heads.getItem(position)) }
        findViewById<Button>(R.id.start).setOnClickListener { open(chats.create()) }
    }

    override fun onStart() {
        super.onStart()
        val started = screenScope()
        scope = started
        started.launch { heads.show(chats.list()) }
    }

    override fun onStop() {
        scope?.cancel()
        super.onStop()
    }

    override fun onDestroy() {
        dialog?.dismiss()
        super.onDestroy()
    }

    override fun onCreateOptionsMenu(menu: Menu): Boolean {
        menuInflater.inflate(R.menu.conversations, menu)
        return true
    }

    override fun onOptionsItemSelected(item: MenuItem): Boolean {
        if (item.itemId != R.id.settings) return super.onOptionsItemSelected(item)
        startActivity(Intent(this, SettingsActivity::class.java))
        return true
    }

    private fun open(id: String) = startActivity(Intent(this, ChatActivity::class.java).putExtra(ChatActivity.ID, id))

    private fun askToDelete(head: Head): Boolean {
        dialog = AlertDialog.Builder(this)
            .setMessage(getString(R.string.delete_question, head.name))
            .setPositiveButton(R.string.delete) { _, _ -> delete(head) }
            .setNegativeButton(R.string.cancel, null)
            .show()
        return true
    }

    private fun delete(head: Head) {
        scope?.launch {
            chats.delete(head.id)
            heads.show(chats.list())
        }
    }
}

private class HeadAdapter : BaseAdapter() {
    private var heads = emptyList<Head>()

    fun show(heads: List<Head>) {
        this.heads = heads
        notifyDataSetChanged()
    }

    override fun getCount(): Int = heads.size

    override fun getItem(position: Int): Head = heads[position]

    override fun getItemId(position: Int): Long = position.toLong()

    override fun getView(position: Int, recycled: View?, parent: ViewGroup): View {
        val context = parent.context
        val row = recycled ?: LayoutInflater.from(context).inflate(R.layout.conversation, parent, false)
        val head = heads[position]
        row.findViewById<TextView>(R.id.name).text = head.name.ifEmpty { context.getString(R.string.unnamed) }
        val ago = DateUtils.getRelativeTimeSpanString(head.updatedMs).toString()
        row.findViewById<TextView>(R.id.about).text =
            context.resources.getQuantityString(R.plurals.exchanges, head.exchanges, head.exchanges, ago)
        return row
    }
}

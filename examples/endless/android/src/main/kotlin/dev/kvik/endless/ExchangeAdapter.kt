package dev.kvik.endless

import android.content.Context
import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter
import android.widget.TextView

/** Rows of a conversation: questions with their answers, the last of which may still be coming. */
class ExchangeAdapter(private val context: Context) : BaseAdapter() {
    private var state = ChatState()

    fun show(state: ChatState) {
        val isSame = state.transcript === this.state.transcript && state.answering == this.state.answering
        this.state = state
        if (!isSame) notifyDataSetChanged()
    }

    override fun getCount(): Int = state.transcript.exchanges.size + if (state.answering == null) 0 else 1

    override fun getItem(position: Int): Exchange =
        state.transcript.exchanges.getOrNull(position) ?: Exchange(state.transcript.draft.orEmpty(), state.answering.orEmpty(), 0)

    override fun getItemId(position: Int): Long = position.toLong()

    override fun isEnabled(position: Int): Boolean = false

    override fun getView(position: Int, recycled: View?, parent: ViewGroup): View {
        val row = recycled ?: LayoutInflater.from(context).inflate(R.layout.exchange, parent, false)
        val exchange = getItem(position)
        row.findViewById<TextView>(R.id.asked).text = exchange.question
        row.findViewById<TextView>(R.id.answer).text = exchange.answer.ifEmpty { context.getString(R.string.thinking) }
        val covered = state.transcript.covered
        val boundary = row.findViewById<View>(R.id.boundary)
        boundary.visibility = if (position == covered && covered > 0) View.VISIBLE else View.GONE
        // What the summary stands for is still there to read, and no longer what the model reads.
        row.alpha = if (position < covered) SUMMARISED_ALPHA else 1f
        return row
    }

    private companion object {
        const val SUMMARISED_ALPHA = 0.6f
    }
}

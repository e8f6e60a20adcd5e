package dev.kvik.notifications

import android.content.Context
import android.text.format.DateUtils
import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter
import android.widget.TextView

/** Rows of the list: a notification, its folder and priority, and what the answer took. */
class VerdictAdapter(private val context: Context) : BaseAdapter() {
    private var verdicts = emptyList<Verdict>()

    fun show(verdicts: List<Verdict>) {
        if (this.verdicts === verdicts) return
        this.verdicts = verdicts
        notifyDataSetChanged()
    }

    override fun getCount(): Int = verdicts.size

    override fun getItem(position: Int): Verdict = verdicts[position]

    override fun getItemId(position: Int): Long = position.toLong()

    override fun isEnabled(position: Int): Boolean = false

    override fun getView(position: Int, recycled: View?, parent: ViewGroup): View {
        val row = recycled ?: LayoutInflater.from(context).inflate(R.layout.verdict, parent, false)
        val verdict = verdicts[position]
        val text = { id: Int, text: CharSequence -> row.findViewById<TextView>(id).text = text }
        text(R.id.title, verdict.notification.title.ifEmpty { verdict.notification.app })
        text(R.id.body, verdict.notification.body)
        text(R.id.place, placeText(verdict))
        text(R.id.took, tookText(verdict))
        return row
    }

    private fun placeText(verdict: Verdict): String {
        val (folder, priority) = verdict.sorted ?: return context.getString(R.string.nowhere)
        val meanings = context.resources.getStringArray(R.array.priorities)
        return context.getString(R.string.place, folder, meanings.getOrElse(priority - 1) { "$priority" })
    }

    private fun tookText(verdict: Verdict): String {
        val ago = DateUtils.getRelativeTimeSpanString(verdict.atMs).toString()
        val computed = verdict.promptTokens - verdict.cachedTokens
        return context.getString(R.string.took, verdict.notification.app, ago, computed, verdict.promptTokens, verdict.firstMs)
    }
}

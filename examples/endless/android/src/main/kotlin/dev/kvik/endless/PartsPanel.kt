package dev.kvik.endless

import android.app.Activity
import android.view.View
import android.widget.LinearLayout
import android.widget.TextView

/** What the last prompt was made of: a bar of prefix, summary, recent and room, its numbers, and the summary's words. */
class PartsPanel(private val activity: Activity) {
    /** Shows the summary's words, or hides them. */
    fun toggle() {
        val summary = activity.findViewById<View>(R.id.summary)
        summary.visibility = if (summary.visibility == View.VISIBLE) View.GONE else View.VISIBLE
    }

    fun show(state: ChatState) {
        val numbers = activity.findViewById<TextView>(R.id.numbers)
        numbers.text = listOfNotNull(partsText(state), tookText(state), summarisingText(state)).joinToString("\n")
        val words = state.transcript.summary?.text ?: activity.getString(R.string.summary_none)
        activity.findViewById<TextView>(R.id.summary).text = words
        state.parts?.let(::draw)
    }

    private fun draw(parts: Parts) {
        val used = parts.prefixTokens + parts.summaryTokens + parts.recentTokens
        weigh(R.id.bar_prefix, parts.prefixTokens)
        weigh(R.id.bar_summary, parts.summaryTokens)
        weigh(R.id.bar_recent, parts.recentTokens)
        weigh(R.id.bar_room, (parts.contextTokens - used).coerceAtLeast(0))
    }

    private fun weigh(id: Int, tokens: Long) {
        val view = activity.findViewById<View>(id)
        val layout = view.layoutParams as LinearLayout.LayoutParams
        layout.weight = tokens.toFloat()
        view.layoutParams = layout
    }

    private fun partsText(state: ChatState): String = state.parts?.run {
        val text = if (dropped == 0) R.string.parts else R.string.parts_dropped
        activity.getString(text, prefixTokens, summaryTokens, summarised, recentTokens, recent, dropped)
    } ?: activity.getString(R.string.opening)

    private fun tookText(state: ChatState): String? = state.report?.run {
        val firstMs = (queued + prefill).toMillis()
        activity.getString(R.string.took, computedTokens, promptTokens, firstMs)
    }

    private fun summarisingText(state: ChatState): String? =
        if (state.isSummarising) activity.getString(R.string.summarising) else null
}

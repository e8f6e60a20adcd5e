package dev.kvik.notifications

import dev.kvik.Report
import dev.kvik.examples.append
import dev.kvik.examples.line
import dev.kvik.examples.readLines
import dev.kvik.examples.replace
import java.io.File

/** A notification and where it went, with what the answer took. */
data class Verdict(
    val atMs: Long,
    val notification: Notification,
    /** None where the model answered something else. */
    val sorted: Sorted?,
    val promptTokens: Long,
    /** Of these, tokens that came from the cache. */
    val cachedTokens: Long,
    /** From the question to the first token. */
    val firstMs: Double,
) {
    constructor(atMs: Long, notification: Notification, classified: Classified) : this(
        atMs,
        notification,
        classified.sorted,
        classified.report.promptTokens,
        classified.report.cachedTokens,
        firstMs(classified.report),
    )
}

/** What the cache gave, over some verdicts. */
data class Savings(val verdicts: Int, val promptTokens: Long, val cachedTokens: Long, val firstMs: Double) {
    val percent: Int get() = if (promptTokens == 0L) 0 else (cachedTokens * 100 / promptTokens).toInt()

    companion object {
        fun of(verdicts: List<Verdict>): Savings? = verdicts.ifEmpty { null }?.let {
            val times = it.map(Verdict::firstMs).sorted()
            Savings(it.size, it.sumOf(Verdict::promptTokens), it.sumOf(Verdict::cachedTokens), times[times.size / 2])
        }
    }
}

/** The newest verdicts, in a file. Its calls block. */
class Journal(private val file: File, private val countMax: Int) {
    private var lines = 0

    /** All that are kept, the newest first. */
    fun load(): List<Verdict> {
        val read = readLines(file).mapNotNull(::read)
        lines = read.size
        return read.takeLast(countMax).reversed()
    }

    /** Adds the first of these verdicts, which are all that are kept. */
    fun add(verdicts: List<Verdict>) {
        append(file, write(verdicts.first()))
        lines += 1
        // The file is written anew as seldom as it doubles.
        if (lines >= 2 * countMax) {
            replace(file, verdicts.reversed().joinToString("", transform = ::write))
            lines = verdicts.size
        }
    }

    fun clear() {
        file.delete()
        lines = 0
    }
}

private fun firstMs(report: Report): Double = (report.queued + report.prefill).toNanos() / 1e6

private fun write(verdict: Verdict): String = verdict.run {
    val place = sorted?.run { arrayOf<Any>(folder, priority) } ?: arrayOf<Any>("", "")
    line(atMs, notification.app, notification.title, notification.body, *place, promptTokens, cachedTokens, firstMs)
}

private fun read(fields: List<String>): Verdict? {
    if (fields.size != 9) return null
    val sorted = fields[5].toIntOrNull()?.let { Sorted(fields[4], it) }
    return Verdict(
        fields[0].toLongOrNull() ?: return null,
        Notification(fields[1], fields[2], fields[3]),
        sorted,
        fields[6].toLongOrNull() ?: return null,
        fields[7].toLongOrNull() ?: return null,
        fields[8].toDoubleOrNull() ?: return null,
    )
}

package dev.kvik.endless

import dev.kvik.examples.append
import dev.kvik.examples.line
import dev.kvik.examples.readLines
import java.io.File

/** A question and its answer, with the tokens that both take in a prompt. */
data class Exchange(val question: String, val answer: String, val tokens: Long)

/** What stands for the first exchanges, `until` the one that is still said as it was. */
data class Summary(val text: String, val tokens: Long, val until: Int, val updates: Int)

/** All that was said in a conversation, and what stands for its beginning. */
data class Transcript(
    val name: String = "",
    val exchanges: List<Exchange> = emptyList(),
    val summary: Summary? = null,
    /** A question that was asked and not answered: it is offered again. */
    val draft: String? = null,
) {
    /** Exchanges that the summary stands for. */
    val covered: Int get() = summary?.until ?: 0

    /** Exchanges that are said as they were. */
    val recent: List<Exchange> get() = exchanges.drop(covered)

    fun answered(exchange: Exchange) = copy(exchanges = exchanges + exchange, draft = null)

    /** Without the exchanges from an index on; a summary that knows of one of them goes, too. */
    fun takenBack(from: Int) = copy(exchanges = exchanges.take(from), summary = summary?.takeIf { it.until <= from })
}

/** A conversation's file, to which lines are only added: a kill costs at most the line that was being written. Blocks. */
class TranscriptFile(val file: File) {
    fun load(): Transcript = readLines(file).fold(Transcript(), ::after)

    fun renamed(name: String) = add("name", name)

    fun asked(question: String) = add("asked", question)

    fun withdrawn() = add("withdrawn")

    fun answered(exchange: Exchange) = exchange.run { add("answered", question, answer, tokens) }

    fun summarised(summary: Summary) = summary.run { add("summary", text, tokens, until, updates) }

    fun tookBack(from: Int) = add("taken_back", from)

    @Synchronized
    private fun add(vararg fields: Any) = append(file, line(*fields))
}

private fun after(transcript: Transcript, line: List<String>): Transcript = when (line.first() to line.size) {
    "name" to 2 -> transcript.copy(name = line[1])
    "asked" to 2 -> transcript.copy(draft = line[1])
    "withdrawn" to 1 -> transcript.copy(draft = null)
    "answered" to 4 -> transcript.answered(Exchange(line[1], line[2], line[3].toLongOrNull() ?: 0))
    "summary" to 5 -> transcript.copy(summary = summary(line)?.takeIf { it.until <= transcript.exchanges.size })
    "taken_back" to 2 -> transcript.takenBack(line[1].toIntOrNull() ?: transcript.exchanges.size)
    else -> transcript
}

private fun summary(line: List<String>): Summary? =
    Summary(line[1], line[2].toLongOrNull() ?: return null, line[3].toIntOrNull() ?: return null, line[4].toIntOrNull() ?: 1)

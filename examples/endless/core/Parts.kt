package dev.kvik.endless

import dev.kvik.AnswerOptions
import dev.kvik.Message
import dev.kvik.Model
import dev.kvik.assistant
import dev.kvik.examples.beginning
import dev.kvik.examples.ending
import dev.kvik.system
import dev.kvik.user

/** Tokens that the parts of a prompt may take: the document's, or what a smaller context has room for. */
data class Bounds(
    /** Of recent exchanges, when a summary has been made. */
    val recentMax: Long,
    val summaryMax: Long,
    /** Beyond the recent ones, of which a new summary is made. */
    val trigger: Long,
    val answerMax: Long,
) {
    companion object {
        fun of(contextTokens: Long) = Bounds(
            recentMax = minOf(4096, contextTokens * 3 / 8),
            summaryMax = minOf(256, contextTokens / 16),
            trigger = minOf(2048, contextTokens / 4),
            answerMax = minOf(512, contextTokens / 8),
        )
    }
}

/** How a summary is asked for and told, in words that the model knows. `{system}`, `{summary}` and `{conversation}` are filled in. */
data class Words(val system: String, val fresh: String, val merge: String, val told: String) {
    companion object {
        /** The embedded model was trained on these alone. */
        val EMBEDDED = Words(
            system = "You write short memory summaries.",
            fresh = "Summarise this conversation:\n{conversation}",
            merge = "Old summary:\n{summary}\n\nNew conversation:\n{conversation}",
            told = "{system} {summary}",
        )

        val ANY = Words(
            system = "You keep the memory of a conversation. Write what will matter later: names, facts, numbers, decisions " +
                "and open questions, each in few words, in the language of the conversation. Only the memory, no comment.",
            fresh = "Conversation:\n{conversation}\n\nWrite the memory of it.",
            merge = "Memory so far:\n{summary}\n\nWhat was said since:\n{conversation}\n\nWrite the memory of all of it.",
            told = "{system}\n\nMemory of the conversation before this:\n{summary}",
        )
    }
}

private val PLACE = Regex("\\{(\\w+)\\}")

/** A text with its places filled in; what is filled in is not read again for places. */
fun filled(text: String, values: Map<String, String>): String = PLACE.replace(text) { values[it.groupValues[1]] ?: it.value }

/** How all that the app asks is rendered, and so counted: a template may write at the beginning that reasoning is off. */
val WITHOUT_REASONING = AnswerOptions(reasoning = false)

/** What a prompt is made of, in tokens, and how many exchanges each part stands for. */
data class Parts(
    val prefixTokens: Long,
    val summaryTokens: Long,
    val recentTokens: Long,
    val summarised: Int,
    /** Exchanges that are in no part: no summary was there in time. */
    val dropped: Int,
    val recent: Int,
    val contextTokens: Long,
)

/** A prompt of three parts and a question. */
class ThreeParts(private val prefix: String, private val words: Words) {
    /**
     * The messages of a prompt that leaves room for an answer. Its beginning is the same from turn to turn, until a new
     * summary is there: all of it comes from the cache.
     */
    fun messages(model: Model, transcript: Transcript, question: String?, bounds: Bounds): Pair<List<Message>, Parts> {
        val room = model.contextTokens - bounds.answerMax
        val all = messages(transcript, transcript.recent, question)
        val dropped = toDrop(transcript.recent, model.countTokens(all, WITHOUT_REASONING) - room)
        val recent = transcript.recent.drop(dropped)
        val messages = if (dropped == 0) all else messages(transcript, recent, question)
        val parts = Parts(
            prefixTokens = model.countTokens(listOf(Message.system(prefix)), WITHOUT_REASONING),
            summaryTokens = transcript.summary?.tokens ?: 0,
            recentTokens = recent.sumOf { it.tokens },
            summarised = transcript.covered,
            dropped = dropped,
            recent = recent.size,
            contextTokens = model.contextTokens,
        )
        return messages to parts
    }

    /**
     * The tokens that an exchange adds to the prompt of a later question. A template may write the prefix into the first
     * question, and the last answer unlike those before it.
     */
    fun tokensOf(model: Model, question: String, answer: String): Long {
        val first = listOf(Message.system(prefix))
        val exchange = listOf(Message.user(question), Message.assistant(answer))
        val next = Message.user("?")
        fun count(messages: List<Message>) = model.countTokens(messages, WITHOUT_REASONING)
        return count(first + exchange + next) - count(first + next)
    }

    private fun messages(transcript: Transcript, recent: List<Exchange>, question: String?): List<Message> = buildList {
        add(Message.system(told(transcript.summary)))
        for (exchange in recent) {
            add(Message.user(exchange.question))
            add(Message.assistant(exchange.answer))
        }
        if (question != null) add(Message.user(question))
    }

    private fun told(summary: Summary?): String =
        if (summary == null) prefix else filled(words.told, mapOf("system" to prefix, "summary" to summary.text))

    /** How many of the oldest have so many tokens. */
    private fun toDrop(exchanges: List<Exchange>, excess: Long): Int {
        var tokens = 0L
        return if (excess <= 0) 0 else exchanges.takeWhile { (tokens < excess).also { _ -> tokens += it.tokens } }.size
    }
}

/** Exchanges that are summarised next: the oldest, so that no more than [tokensMax] of recent ones stay. */
fun toSummarise(transcript: Transcript, tokensMax: Long): List<Exchange> {
    var left = transcript.recent.sumOf { it.tokens }
    return transcript.recent.takeWhile { (left > tokensMax).also { _ -> left -= it.tokens } }
}

/**
 * Exchanges with at most so many tokens, as the document samples what a summary is made of: a quarter from the beginning, a
 * quarter from the end, and even steps between. Whole exchanges instead of its single tokens, which make no sentences; of one
 * that is longer than a quarter its beginning and its end, since the summary stands for it as for all others.
 */
fun sample(exchanges: List<Exchange>, room: Long): List<Exchange> {
    if (tokens(exchanges) <= room) return exchanges
    val quarter = room / 4
    if (quarter <= 0) return emptyList()
    val short = exchanges.map { shortened(it, quarter) }
    if (tokens(short) <= room) return short
    val head = first(short, quarter)
    val tail = first(short.drop(head.size).asReversed(), quarter).asReversed()
    val middle = short.subList(head.size, short.size - tail.size)
    val left = room - tokens(head) - tokens(tail)
    val step = (tokens(middle) / maxOf(left, 1) + 1).coerceAtMost(Int.MAX_VALUE.toLong()).toInt()
    return head + within(middle.filterIndexed { index, _ -> index % step == 0 }, left) + tail
}

private fun tokens(exchanges: List<Exchange>): Long = exchanges.sumOf { it.tokens }

/** The first exchanges, as many as fit. */
private fun first(exchanges: List<Exchange>, room: Long): List<Exchange> {
    var tokens = 0L
    return exchanges.takeWhile { tokens += it.tokens; tokens <= room }
}

/** The exchanges without those that no longer fit behind the ones before them. */
private fun within(exchanges: List<Exchange>, room: Long): List<Exchange> {
    var left = room
    return exchanges.filter { exchange -> (exchange.tokens <= left).also { fits -> if (fits) left -= exchange.tokens } }
}

/** An exchange of about so many tokens at most: a question as short as most are stays whole beside a long answer. */
private fun shortened(exchange: Exchange, tokensMax: Long): Exchange {
    if (exchange.tokens <= tokensMax) return exchange
    val (question, answer) = exchange
    val charsMax = ((question.length + answer.length) * tokensMax / exchange.tokens).toInt()
    return Exchange(
        ends(question, charsMax - minOf(answer.length, charsMax / 2)),
        ends(answer, charsMax - minOf(question.length, charsMax / 2)),
        tokensMax,
    )
}

private fun ends(text: String, charsMax: Int): String =
    if (text.length <= charsMax) text else "${beginning(text, charsMax / 2)} … ${ending(text, charsMax / 2)}"

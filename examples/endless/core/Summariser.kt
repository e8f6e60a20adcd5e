package dev.kvik.endless

import dev.kvik.AnswerOptions
import dev.kvik.Message
import dev.kvik.SharedModel
import dev.kvik.system
import dev.kvik.user

/**
 * Makes summaries with a model that it is given: the chat's own, or one of its own whose keys and values have four bits, as
 * in the document, so that the chat's cache and its answers are left alone.
 */
class Summariser(private val shared: SharedModel, private val words: Words) {
    /** A summary of the old one and what was said since; none where the model says nothing. */
    suspend fun summarise(transcript: Transcript, exchanges: List<Exchange>): Summary? = shared.use { model ->
        val tokensMax = Bounds.of(model.contextTokens).summaryMax
        val old = transcript.summary
        val room = model.contextTokens - tokensMax - (old?.tokens ?: 0) - WORDS_TOKENS
        val asked = listOf(Message.system(words.system), Message.user(asked(old, sample(exchanges, room))))
        val reply = model.answer(asked, AnswerOptions(maxTokens = tokensMax, reasoning = false))
        val text = reply.text.trim().ifEmpty { return@use null }
        Summary(text, reply.report.generatedTokens, transcript.covered + exchanges.size, (old?.updates ?: 0) + 1)
    }

    private fun asked(old: Summary?, exchanges: List<Exchange>): String {
        val conversation = exchanges.joinToString("\n") { "User: ${it.question}\nAssistant: ${it.answer}" }
        val request = if (old == null) words.fresh else words.merge
        return filled(request, mapOf("summary" to old?.text.orEmpty(), "conversation" to conversation))
    }

    private companion object {
        /** The request's own words and what the template adds, about. */
        const val WORDS_TOKENS = 96L
    }
}

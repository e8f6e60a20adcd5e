package dev.kvik.endless

import dev.kvik.Finish
import dev.kvik.Message
import dev.kvik.Model
import dev.kvik.SharedModel
import dev.kvik.system
import dev.kvik.user

/**
 * Makes summaries with a model that it is given: the chat's own, or one of its own whose keys and values have four bits, as
 * in the document, so that the chat's cache and its answers are left alone.
 */
class Summariser(private val shared: SharedModel, private val words: Words) {
    /**
     * A summary of the old one and what was said since, for which the chat has room for so many tokens; none where the model
     * says nothing, or its context has no room to read.
     */
    suspend fun summarise(transcript: Transcript, exchanges: List<Exchange>, tokensMax: Long): Summary? = shared.use { model ->
        val old = transcript.summary
        val request = request(model, old, exchanges, tokensMax) ?: return@use null
        val reply = model.answer(request, WITHOUT_REASONING.copy(maxTokens = tokensMax))
        // The model was closed: half a sentence would stand for the exchanges for good.
        if (reply.report.finish == Finish.CANCELLED) return@use null
        val text = reply.text.trim().ifEmpty { return@use null }
        Summary(text, reply.report.generatedTokens, transcript.covered + exchanges.size, (old?.updates ?: 0) + 1)
    }

    /**
     * What the model is asked, beside which a summary fits its context. The tokens of exchanges are estimates here, of
     * shortened ones and of another model's: where they were too low, half of the room is filled, and so on.
     */
    private fun request(model: Model, old: Summary?, exchanges: List<Exchange>, tokensMax: Long): List<Message>? {
        val promptMax = model.contextTokens - tokensMax
        val room = promptMax - (old?.tokens ?: 0L) - WORDS_TOKENS
        return generateSequence(room) { before -> (before / 2).takeIf { it > 0 } }
            .map { sample(exchanges, it) }
            .takeWhile { it.isNotEmpty() }
            .map { listOf(Message.system(words.system), Message.user(asked(old, it))) }
            .firstOrNull { model.countTokens(it, WITHOUT_REASONING) <= promptMax }
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

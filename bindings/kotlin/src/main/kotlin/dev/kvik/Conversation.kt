package dev.kvik

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.withContext

/**
 * A stored conversation, with summaries beyond the context. Any number of threads may use it; only one at a time can change
 * it, and others get a [KvikException.Busy].
 */
class Conversation internal constructor(private val handle: ConversationHandle) {
    /**
     * Sends a text and answers it. Question and answer are stored together when the answer has ended; a turn that is
     * cancelled or fails stores nothing.
     */
    fun say(
        text: String,
        options: AnswerOptions = AnswerOptions(),
        onReport: (Report) -> Unit = {},
    ): Flow<Piece> = say(listOf(Message.user(text)), options, onReport)

    /** Sends messages, such as the results of tools, and answers them. */
    fun say(
        messages: List<Message>,
        options: AnswerOptions = AnswerOptions(),
        onReport: (Report) -> Unit = {},
    ): Flow<Piece> = stream(onReport) { ask(messages, options) }

    /** An answer that the caller reads and closes, as [Model.ask]. */
    fun ask(messages: List<Message>, options: AnswerOptions = AnswerOptions()): AnswerHandle =
        checked { handle.say(messages, options) }

    /** The whole answer to a text. */
    suspend fun answer(text: String, options: AnswerOptions = AnswerOptions()): Reply =
        answer(listOf(Message.user(text)), options)

    /** The whole answer to messages. */
    suspend fun answer(messages: List<Message>, options: AnswerOptions = AnswerOptions()): Reply =
        whole { ask(messages, options) }

    /** Metadata of the conversation. */
    suspend fun info(): ConversationInfo = withContext(Dispatchers.IO) { handle.info() }

    /** Messages of the conversation. */
    suspend fun messages(): List<Message> = withContext(Dispatchers.IO) { handle.messages() }

    /** The summary of its older messages, if there is one. */
    suspend fun remembered(): Remembered? = withContext(Dispatchers.IO) { handle.remembered() }

    /** Replaces the text of its newest summary; the next turn reads the new text. */
    suspend fun correct(summary: String): Remembered =
        withContext(Dispatchers.IO) { checked { handle.correct(summary) } }

    /** Removes the messages from this index on, and the summaries that cover any of them. */
    suspend fun takeBack(from: Long) = withContext(Dispatchers.IO) { handle.takeBack(from) }

    /** Renames the conversation. */
    suspend fun rename(name: String) = withContext(Dispatchers.IO) { checked { handle.rename(name) } }

    /** Deletes the conversation and its summaries. Later calls of this object fail. */
    suspend fun delete() = withContext(Dispatchers.IO) { handle.delete() }
}

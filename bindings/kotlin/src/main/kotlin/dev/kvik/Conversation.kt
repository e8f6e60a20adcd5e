package dev.kvik

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.withContext

/**
 * A conversation that is kept under a name, and goes on without end: beyond the context it is remembered. It may be used from
 * any number of threads; one at a time changes it, and another one that tries to is told by a [KvikException.Busy].
 */
class Conversation internal constructor(private val handle: ConversationHandle) {
    /**
     * Says something, and answers it. Question and answer are written down together when the answer has ended; one that is
     * cancelled or fails leaves nothing behind.
     */
    fun say(
        text: String,
        options: AnswerOptions = AnswerOptions(),
        onReport: (Report) -> Unit = {},
    ): Flow<Piece> = say(listOf(Message.user(text)), options, onReport)

    /** Says messages, as the results of tools, and answers them. */
    fun say(
        messages: List<Message>,
        options: AnswerOptions = AnswerOptions(),
        onReport: (Report) -> Unit = {},
    ): Flow<Piece> = stream(onReport) { ask(messages, options) }

    /** An answer in the caller's hands, as [Model.ask]. It is to be closed. */
    fun ask(messages: List<Message>, options: AnswerOptions = AnswerOptions()): AnswerHandle =
        handle.say(messages, options)

    /** The whole answer to a text. */
    suspend fun answer(text: String, options: AnswerOptions = AnswerOptions()): Reply =
        answer(listOf(Message.user(text)), options)

    /** The whole answer to messages. */
    suspend fun answer(messages: List<Message>, options: AnswerOptions = AnswerOptions()): Reply =
        whole { ask(messages, options) }

    /** What is known of it without reading it. */
    suspend fun info(): ConversationInfo = withContext(Dispatchers.IO) { handle.info() }

    /** What was said in it. */
    suspend fun messages(): List<Message> = withContext(Dispatchers.IO) { handle.messages() }

    /** What is remembered of it beyond its recent messages, if anything. */
    suspend fun remembered(): Remembered? = withContext(Dispatchers.IO) { handle.remembered() }

    /** From now on its newest summary says this, which its next turn is told. */
    suspend fun correct(summary: String): Remembered = withContext(Dispatchers.IO) { handle.correct(summary) }

    /** Takes back the messages from this index on, and what is remembered of them. */
    suspend fun takeBack(from: Long) = withContext(Dispatchers.IO) { handle.takeBack(from) }

    /** Gives it another name. */
    suspend fun rename(name: String) = withContext(Dispatchers.IO) { handle.rename(name) }

    /** Deletes it, and all that is remembered of it. This object is of no use afterwards. */
    suspend fun delete() = withContext(Dispatchers.IO) { handle.delete() }
}

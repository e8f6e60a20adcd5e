package dev.kvik

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.launch
import java.nio.ByteBuffer
import java.nio.ByteOrder

/** A whole answer: its text, what the model thought before it, and what it took. */
data class Reply(val text: String, val reasoning: String, val report: Report)

/** What the program says, to the model. */
fun Message.Companion.system(content: String) = Message(Role.SYSTEM, content)

/** What the user says. */
fun Message.Companion.user(content: String) = Message(Role.USER, content)

/** What the model has said. */
fun Message.Companion.assistant(content: String) = Message(Role.ASSISTANT, content)

/** The text of a piece, whatever it is. */
val Piece.text: String
    get() = when (this) {
        is Piece.Reasoning -> text
        is Piece.Text -> text
    }

/** Whether it is kept, and no token of it would have to be computed, but for the last one. */
val KeptState.isWarm: Boolean get() = this is KeptState.Kept && warm

/** The vector as numbers. */
fun Embedding.floats(): FloatArray {
    val numbers = ByteBuffer.wrap(vector).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
    return FloatArray(numbers.remaining()).also { numbers.get(it) }
}

/**
 * Reads an answer to its end, on a thread that may block, and frees it. Cancelling the coroutine cancels the answer.
 *
 * A thread that waits in [AnswerHandle.next] cannot notice that its coroutine was cancelled, and a step of a prompt can take
 * seconds. So a second coroutine, which waits for nothing but that, cancels the answer; the step that runs is its last.
 */
internal suspend fun AnswerHandle.read(take: suspend (Piece) -> Unit): Report = use { answer ->
    coroutineScope {
        val watch = launch(Dispatchers.Unconfined) {
            try {
                awaitCancellation()
            } finally {
                answer.cancel()
            }
        }
        while (true) {
            val pieces = answer.next()
            ensureActive()
            if (pieces.isEmpty()) break
            pieces.forEach { take(it) }
        }
        watch.cancel()
        answer.report() ?: error("an answer that has not failed ends with its report")
    }
}

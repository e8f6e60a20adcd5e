package dev.kvik

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.channelFlow
import kotlinx.coroutines.flow.emitAll
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.flowOn
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import java.nio.ByteBuffer
import java.nio.ByteOrder

/** A whole answer: its text, what the model thought before it, the tools that it calls, and what it took. */
data class Reply(val text: String, val reasoning: String, val calls: List<ToolCall>, val report: Report)

/** What the program says, to the model. */
fun Message.Companion.system(content: String) = Message(Role.SYSTEM, content)

/** What the user says. */
fun Message.Companion.user(content: String) = Message(Role.USER, content)

/** What the model has said. */
fun Message.Companion.assistant(content: String) = Message(Role.ASSISTANT, content)

/** What a tool has answered to a call. */
fun Message.Companion.tool(callId: String, content: String) = Message(Role.TOOL, content, toolCallId = callId)

/** The text of a piece; of a call none. */
val Piece.text: String
    get() = when (this) {
        is Piece.Reasoning -> text
        is Piece.Text -> text
        is Piece.Call -> ""
    }

/** Whether it is kept, and no token of it would have to be computed, but for the last one. */
val KeptState.isWarm: Boolean get() = this is KeptState.Kept && warm

/** Numbers that have crossed as bytes. */
internal fun floats(bytes: ByteArray): FloatArray {
    val numbers = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
    return FloatArray(numbers.remaining()).also { numbers.get(it) }
}

/** An answer as a flow: read on a thread that may block, while pieces and the report arrive where they are collected. */
internal fun stream(onReport: (Report) -> Unit, ask: () -> AnswerHandle): Flow<Piece> = flow {
    lateinit var report: Report
    val pieces = channelFlow { report = ask().read { send(it) } }
    emitAll(pieces.flowOn(Dispatchers.IO))
    onReport(report)
}

/** An answer as a whole. */
internal suspend fun whole(ask: () -> AnswerHandle): Reply = withContext(Dispatchers.IO) {
    val text = StringBuilder()
    val reasoning = StringBuilder()
    val calls = mutableListOf<ToolCall>()
    ask().untilCancelled { answer ->
        for (piece in answer.rest()) {
            when (piece) {
                is Piece.Reasoning -> reasoning.append(piece.text)
                is Piece.Text -> text.append(piece.text)
                is Piece.Call -> calls += piece.call
            }
        }
        Reply(text.toString(), reasoning.toString(), calls, answer.ended())
    }
}

/** Reads an answer to its end, on a thread that may block. */
internal suspend fun AnswerHandle.read(take: suspend (Piece) -> Unit): Report = untilCancelled { answer ->
    while (true) {
        val pieces = answer.next()
        currentCoroutineContext().ensureActive()
        if (pieces.isEmpty()) break
        pieces.forEach { take(it) }
    }
    answer.ended()
}

private fun AnswerHandle.ended(): Report = report() ?: error("an answer that has not failed ends with its report")

/**
 * Does something with an answer, and frees it. Cancelling the coroutine cancels the answer.
 *
 * A thread that waits in a call of Rust cannot notice that its coroutine was cancelled, and a step of a prompt can take
 * seconds. So a second coroutine, which waits for nothing but that, cancels the answer; the step that runs is its last.
 */
private suspend fun <T> AnswerHandle.untilCancelled(action: suspend (AnswerHandle) -> T): T = use { answer ->
    coroutineScope {
        val watch = launch(Dispatchers.Unconfined) {
            try {
                awaitCancellation()
            } finally {
                answer.cancel()
            }
        }
        action(answer).also { watch.cancel() }
    }
}

package dev.kvik

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.channelFlow
import kotlinx.coroutines.flow.emitAll
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.flowOn
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.charset.CharacterCodingException

/** A whole answer: its text, the reasoning before it, its tool calls, and its report. */
data class Reply(val text: String, val reasoning: String, val calls: List<ToolCall>, val report: Report)

/** Creates a system message. */
fun Message.Companion.system(content: String) = Message(Role.SYSTEM, content)

/** Creates a user's message. */
fun Message.Companion.user(content: String) = Message(Role.USER, content)

/** Creates a message of the model. */
fun Message.Companion.assistant(content: String) = Message(Role.ASSISTANT, content)

/** Creates the result of a tool call. */
fun Message.Companion.tool(callId: String, content: String) = Message(Role.TOOL, content, toolCallId = callId)

/** Text of a piece; empty for a call. */
val Piece.text: String
    get() = when (this) {
        is Piece.Reasoning -> text
        is Piece.Text -> text
        is Piece.Call -> ""
    }

/** True if the prompt is pinned and cached, but for its last token. */
val KeptState.isWarm: Boolean get() = this is KeptState.Kept && warm

/** Converts the bytes of a vector to numbers. */
internal fun floats(bytes: ByteArray): FloatArray {
    val numbers = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
    return FloatArray(numbers.remaining()).also { numbers.get(it) }
}

/** Calls the library; a text that cannot be encoded for it is an argument that is wrong, not a file that cannot be read. */
internal inline fun <T> checked(call: () -> T): T = try {
    call()
} catch (half: CharacterCodingException) {
    throw KvikException.InvalidArgument("a text has half of a surrogate pair")
}

/**
 * An answer as a flow: read on a thread that may block, while pieces and the report arrive where they are collected. It is
 * not read ahead of its collector, since the call that reads the end of a conversation's answer stores the turn.
 */
internal fun stream(onReport: (Report) -> Unit, ask: () -> AnswerHandle): Flow<Piece> = flow {
    lateinit var report: Report
    val pieces = channelFlow { report = ask().read { send(it) } }
    emitAll(pieces.buffer(Channel.RENDEZVOUS).flowOn(Dispatchers.IO))
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

package dev.kvik.endless

import dev.kvik.AnswerOptions
import dev.kvik.Finish
import dev.kvik.KvikException
import dev.kvik.Message
import dev.kvik.Model
import dev.kvik.Piece
import dev.kvik.Report
import dev.kvik.SharedModel
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import java.io.IOException
import kotlin.random.Random

/** How a conversation is answered. */
class ChatConfig(
    /** The first part: what the model is told before all else. */
    val prefix: String,
    val words: Words,
    /** How tokens are drawn; what is not set is as the model's makers recommend it. */
    val answer: AnswerOptions = AnswerOptions(),
)

/** All that the screen shows of a conversation. */
data class ChatState(
    val transcript: Transcript = Transcript(),
    val isLoaded: Boolean = false,
    /** The answer so far; none while nothing is answered. */
    val answering: String? = null,
    /** What the last prompt was made of. */
    val parts: Parts? = null,
    val report: Report? = null,
    val isSummarising: Boolean = false,
    val failure: String? = null,
)

/**
 * A conversation without end. It is the process's, not a screen's: a rotation finds the answer where it is. The chat's own
 * model answers; behind it a summariser makes room.
 */
class ChatSession(
    private val file: TranscriptFile,
    private val chat: SharedModel,
    /** None drops what does not fit, as a sliding window does. */
    private val summariser: Summariser?,
    private val config: ChatConfig,
    private val scope: CoroutineScope,
) {
    private val changes = MutableStateFlow(ChatState())
    private val prompts = ThreeParts(config.prefix, config.words)
    private var turn: Job? = null
    private var summary: Job? = null

    val state: StateFlow<ChatState> = changes.asStateFlow()

    init {
        scope.launch(Dispatchers.IO) {
            reporting {
                val loaded = file.load()
                changes.update { it.copy(transcript = loaded, isLoaded = true) }
            }
        }
    }

    /** Asks, unless an answer is still being made. Called on one thread. */
    fun ask(question: String): Job? {
        if (turn?.isActive == true || !state.value.isLoaded || question.isBlank()) return null
        changes.update { it.copy(answering = "", failure = null, transcript = it.transcript.copy(draft = question)) }
        return scope.launch {
            try {
                reporting { answer(question) }
            } finally {
                changes.update { it.copy(answering = null) }
            }
        }.also { turn = it }
    }

    /** Ends the answer. Nothing of it is kept, and the question is a draft again: asked once more it costs no prompt. */
    fun stop() {
        turn?.cancel()
    }

    /**
     * Ends the answer, and then the summary that it may have begun, which a later answer begins again. Returns when nothing
     * computes or writes for the conversation any more.
     */
    suspend fun end() {
        turn?.cancelAndJoin()
        summary?.cancelAndJoin()
    }

    /** Holds the model open and the conversation in its cache until the caller is cancelled: while the screen is seen. */
    suspend fun keepWarm() {
        state.first { it.isLoaded }
        reporting {
            chat.use {
                prefill(it)
                awaitCancellation()
            }
        }
    }

    /** Takes back the exchanges from an index on. */
    suspend fun takeBack(from: Int) {
        state.first { it.isLoaded }
        summary?.cancelAndJoin()
        reporting {
            // What is shown is what the file says, whatever the caller wants meanwhile.
            withContext(NonCancellable + Dispatchers.IO) {
                file.tookBack(from)
                changes.update { it.copy(transcript = it.transcript.takenBack(from)) }
            }
        }
    }

    /** The user no longer wants to ask the draft. */
    suspend fun withdraw() {
        if (state.value.transcript.draft == null) return
        reporting {
            withContext(NonCancellable + Dispatchers.IO) {
                file.withdrawn()
                changes.update { it.copy(transcript = it.transcript.copy(draft = null)) }
            }
        }
    }

    /** Waits for the work behind answers. */
    suspend fun settle() {
        summary?.join()
    }

    private suspend fun answer(question: String) = chat.use { model ->
        val bounds = Bounds.of(model.contextTokens)
        withContext(Dispatchers.IO) { file.asked(question) }
        val (messages, parts) = prompts.messages(model, state.value.transcript, question, bounds)
        changes.update { it.copy(parts = parts) }
        val maxTokens = minOf(config.answer.maxTokens ?: bounds.answerMax, bounds.answerMax)
        val options = config.answer.copy(maxTokens = maxTokens, reasoning = false, seed = Random.nextLong())
        val text = read(model, messages, options)
        val exchange = Exchange(question, text, prompts.tokensOf(model, question, text))
        // From here on it is said, whatever the caller wants.
        withContext(NonCancellable) {
            withContext(Dispatchers.IO) { file.answered(exchange) }
            changes.update { it.copy(transcript = it.transcript.answered(exchange), answering = null) }
        }
        summariseIfDue(bounds)
    }

    private suspend fun read(model: Model, messages: List<Message>, options: AnswerOptions): String {
        val text = StringBuilder()
        lateinit var report: Report
        model.chat(messages, options, onReport = { report = it }).collect { piece ->
            if (piece is Piece.Text) text.append(piece.text)
            changes.update { it.copy(answering = text.toString()) }
        }
        // What was said until then is no answer: the question is a draft again.
        if (report.finish == Finish.CANCELLED) throw KvikException.Request("the answer was cancelled before its end")
        changes.update { it.copy(report = report) }
        return text.toString()
    }

    /** Starts a summary where the recent exchanges have outgrown their part; one at a time. */
    private fun summariseIfDue(bounds: Bounds) {
        val summariser = summariser ?: return
        val recentTokens = state.value.transcript.recent.sumOf { it.tokens }
        if (recentTokens <= bounds.recentMax + bounds.trigger || summary?.isActive == true) return
        summary = scope.launch {
            changes.update { it.copy(isSummarising = true) }
            try {
                reporting { summarise(summariser, bounds) }
            } finally {
                changes.update { it.copy(isSummarising = false) }
            }
        }
    }

    /** The chat goes on meanwhile, with the old summary; the new one is read from the next turn on. */
    private suspend fun summarise(summariser: Summariser, bounds: Bounds) {
        val transcript = state.value.transcript
        val oldest = toSummarise(transcript, bounds.recentMax)
        val new = summariser.summarise(transcript, oldest, bounds.summaryMax) ?: return
        // From here on it is in the file, and what is shown is what the file says.
        withContext(NonCancellable) {
            withContext(Dispatchers.IO) { file.summarised(new) }
            changes.update { it.copy(transcript = it.transcript.copy(summary = new)) }
        }
        chat.use { prefill(it) }
    }

    /** Computes what the next question is behind, so that it costs its own tokens. */
    private suspend fun prefill(model: Model) {
        val bounds = Bounds.of(model.contextTokens)
        val (messages, parts) = prompts.messages(model, state.value.transcript, null, bounds)
        changes.update { it.copy(parts = parts) }
        model.answer(messages, WITHOUT_REASONING.copy(maxTokens = 1))
    }

    private suspend fun reporting(action: suspend () -> Unit) {
        try {
            action()
        } catch (failure: KvikException) {
            changes.update { it.copy(failure = failure.message) }
        } catch (failure: IOException) {
            changes.update { it.copy(failure = failure.message) }
        } catch (failure: SecurityException) {
            // The system refuses what was allowed when it was set.
            changes.update { it.copy(failure = failure.message) }
        }
    }
}

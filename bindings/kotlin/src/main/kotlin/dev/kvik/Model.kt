package dev.kvik

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.withContext
import java.io.Closeable

/**
 * An open model, for any number of threads and coroutines; answers are computed together.
 *
 * Calls that take time suspend, and block no thread of the caller's dispatcher. Failures are a [KvikException]; after
 * [close], a [KvikException.Closed].
 */
class Model private constructor(private val handle: ModelHandle) : Closeable {
    companion object {
        /** Opens a GGUF file, or a directory in Hugging Face's layout. */
        suspend fun open(path: String, options: ModelOptions = ModelOptions()): Model =
            opened { ModelHandle.open(path, options) }

        /** Opens a GGUF file in memory. */
        suspend fun open(bytes: ByteArray, options: ModelOptions = ModelOptions()): Model =
            opened { ModelHandle.openBytes(bytes, options) }

        /**
         * Opens a GGUF file inside an open file, which is mapped: the numbers of an Android `AssetFileDescriptor`. The
         * caller keeps the descriptor and may close it after the call.
         */
        suspend fun open(
            descriptor: Int,
            offset: Long,
            bytes: Long? = null,
            options: ModelOptions = ModelOptions(),
        ): Model = opened { ModelHandle.openDescriptor(descriptor, offset, bytes, options) }

        /** A caller that is cancelled meanwhile gets no model: it is closed again. */
        private suspend fun opened(open: () -> ModelHandle): Model {
            var handle: ModelHandle? = null
            try {
                withContext(Dispatchers.IO) { handle = checked(open) }
            } catch (cancelled: CancellationException) {
                withContext(NonCancellable + Dispatchers.IO) { handle?.shutDown() }
                throw cancelled
            }
            return Model(checkNotNull(handle))
        }
    }

    /** Maximum tokens of a prompt and its answer together. */
    val contextTokens: Long get() = handle.contextTokens()

    /** Statistics of the engine after its last step. */
    val stats: Stats get() = handle.stats()

    /**
     * The sampling of answers whose options set none: what the model's makers recommend, else kvik's defaults, each setting
     * with its source. [reasoning] is that of the options: some makers recommend other settings without it.
     */
    fun sampling(reasoning: Boolean? = null): ModelSampling = handle.sampling(reasoning)

    /**
     * Answers messages, rendered by the model's chat template. Each collector starts an answer; cancelling the collector
     * ends the answer at the next step of the model. [onReport] receives the report after the last piece.
     */
    fun chat(
        messages: List<Message>,
        options: AnswerOptions = AnswerOptions(),
        onReport: (Report) -> Unit = {},
    ): Flow<Piece> = stream(onReport) { ask(Prompt.Messages(messages), options) }

    /**
     * Continues a text as it is. Names of control tokens in it are parsed as these tokens, so users' texts belong in
     * messages.
     */
    fun generate(
        text: String,
        options: AnswerOptions = AnswerOptions(),
        onReport: (Report) -> Unit = {},
    ): Flow<Piece> = stream(onReport) { ask(Prompt.Text(text), options) }

    /**
     * An answer that the caller reads: `next` blocks for pieces, `cancel` ends the answer from any thread, after which the
     * rest and the `report` can still be read. The caller closes it.
     */
    fun ask(prompt: Prompt, options: AnswerOptions = AnswerOptions()): AnswerHandle =
        checked { handle.generate(prompt, options) }

    /** The whole answer to messages. */
    suspend fun answer(messages: List<Message>, options: AnswerOptions = AnswerOptions()): Reply =
        answer(Prompt.Messages(messages), options)

    /** The whole answer to messages, or the whole continuation of a text. */
    suspend fun answer(prompt: Prompt, options: AnswerOptions = AnswerOptions()): Reply = whole { ask(prompt, options) }

    /**
     * Opens the conversation with this name or id; if no conversation has the name, a new one is stored once a turn was
     * answered in it.
     */
    fun conversation(reference: String): Conversation = Conversation(checked { handle.conversation(reference) })

    /** All conversations, the most recently changed first. */
    val conversations: List<ConversationInfo> get() = handle.conversations()

    /**
     * True if conversations are stored on the disk. If not, they end with the model: without a directory for them, or
     * because another process stores its conversations there.
     */
    val conversationsAreStored: Boolean get() = handle.conversationsAreStored()

    /** Embedding of a text: a vector of length 1. */
    suspend fun embed(text: String): FloatArray =
        withContext(Dispatchers.IO) { floats(checked { handle.embed(text) }.vector) }

    /** Logits of the next token, before sampling: of the whole vocabulary, or of [tokens] in their order. */
    suspend fun logits(
        prompt: Prompt,
        tokens: List<Int>? = null,
        options: AnswerOptions = AnswerOptions(),
    ): FloatArray = withContext(Dispatchers.IO) { floats(checked { handle.logits(prompt, tokens, options) }.values) }

    /** Tokenizes a text on its own. Names of control tokens in it are parsed as these tokens. */
    fun tokens(text: String): List<Int> = checked { handle.tokens(text) }

    /** Text of tokens. */
    fun textOf(tokens: List<Int>): String = handle.textOf(tokens)

    /** Number of tokens of a prompt, as an answer with these options reads it. */
    fun countTokens(prompt: Prompt, options: AnswerOptions = AnswerOptions()): Long =
        checked { handle.countTokens(prompt, options) }

    /** Number of tokens of messages. */
    fun countTokens(messages: List<Message>, options: AnswerOptions = AnswerOptions()): Long =
        countTokens(Prompt.Messages(messages), options)

    /** Reports what a prompt would find in the cache now, and why not more. Computes and changes nothing. */
    suspend fun explain(prompt: Prompt, options: AnswerOptions = AnswerOptions()): Explanation =
        withContext(Dispatchers.IO) { checked { handle.explain(prompt, options) } }

    /** Reports what messages would find in the cache now. */
    suspend fun explain(messages: List<Message>, options: AnswerOptions = AnswerOptions()): Explanation =
        explain(Prompt.Messages(messages), options)

    /**
     * Computes the common prefix of future prompts, and pins it under a name: in RAM, and on disk, where another process
     * finds it. The previous prompt of the name is unpinned. [options] are those of the answers: a template may write tools
     * and reasoning before the messages.
     */
    suspend fun keep(id: String, prompt: Prompt, options: AnswerOptions = AnswerOptions()): KeptState =
        withContext(Dispatchers.IO) { checked { handle.keepPrompt(id, prompt, options) } }

    /** Compares a prompt with the one that is pinned under a name, and reports how much of it is cached. */
    suspend fun kept(id: String, prompt: Prompt, options: AnswerOptions = AnswerOptions()): KeptState =
        withContext(Dispatchers.IO) { checked { handle.isKept(id, prompt, options) } }

    /** Pins a system prompt under a name, for answers with these options. */
    suspend fun cacheSystemPrompt(id: String, prompt: String, options: AnswerOptions = AnswerOptions()): KeptState =
        keep(id, systemPrompt(prompt), options)

    /** Returns whether this system prompt is pinned under a name and cached, but for its last token. */
    suspend fun isValid(id: String, prompt: String, options: AnswerOptions = AnswerOptions()): Boolean =
        kept(id, systemPrompt(prompt), options).isWarm

    /** Unpins the prompt of a name. Returns whether the name existed. */
    suspend fun invalidate(id: String): Boolean =
        withContext(Dispatchers.IO) { checked { handle.forgetPrompt(id) } }

    /** Releases memory to the system, in about 50 ms: for Android's `onTrimMemory`. */
    fun onMemoryPressure(level: MemoryPressure): Released = handle.onMemoryPressure(level)

    /**
     * Prepares for the end of the process, in about 100 ms: cancels all answers and writes computed blocks to the disk. For
     * Android's `onStop`. After that no thread of the model runs until the next call.
     */
    fun onBackground(): Flushed = handle.onBackground()

    /** Cancels all answers, waits up to two seconds until computed blocks are on disk, and stops all threads. */
    override fun close() {
        // The handle itself stays, so that later calls fail as closed; it is a few bytes, and collected.
        handle.shutDown()
    }

    private fun systemPrompt(prompt: String) = Prompt.Messages(listOf(Message.system(prompt)))
}

package dev.kvik

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.withContext
import java.io.Closeable

/**
 * An open model, for any number of threads and coroutines; answers are computed together.
 *
 * What takes time suspends, and blocks no thread of the caller's dispatcher. Failures are a [KvikException], after [close]
 * a [KvikException.Closed].
 */
class Model private constructor(private val handle: ModelHandle) : Closeable {
    companion object {
        /** Opens a GGUF file, or a directory as Hugging Face lays it out. */
        suspend fun open(path: String, options: ModelOptions = ModelOptions()): Model =
            opened { ModelHandle.open(path, options) }

        /** Opens a GGUF file in memory. */
        suspend fun open(bytes: ByteArray, options: ModelOptions = ModelOptions()): Model =
            opened { ModelHandle.openBytes(bytes, options) }

        /**
         * Opens a GGUF file inside an open file, which is mapped: the numbers of an Android `AssetFileDescriptor`. The
         * descriptor stays the caller's, who may close it after the call.
         */
        suspend fun open(
            descriptor: Int,
            offset: Long,
            bytes: Long? = null,
            options: ModelOptions = ModelOptions(),
        ): Model = opened { ModelHandle.openDescriptor(descriptor, offset, bytes, options) }

        private suspend fun opened(open: () -> ModelHandle) = Model(withContext(Dispatchers.IO) { open() })
    }

    /** Tokens of a prompt and its answer together. */
    val contextTokens: Long get() = handle.contextTokens()

    /** The engine's numbers after its last step. */
    val stats: Stats get() = handle.stats()

    /**
     * Answers messages, in the form of the model's chat template. Each collector asks anew; one that is cancelled ends its
     * answer at the next step of the model. [onReport] learns what the answer took, after its last piece.
     */
    fun chat(
        messages: List<Message>,
        options: AnswerOptions = AnswerOptions(),
        onReport: (Report) -> Unit = {},
    ): Flow<Piece> = stream(onReport) { ask(Prompt.Messages(messages), options) }

    /**
     * Continues a text as it is. Names of control tokens in it stand for these tokens: texts of users belong into messages.
     */
    fun generate(
        text: String,
        options: AnswerOptions = AnswerOptions(),
        onReport: (Report) -> Unit = {},
    ): Flow<Piece> = stream(onReport) { ask(Prompt.Text(text), options) }

    /**
     * An answer in the caller's hands: its `next` blocks for pieces, its `cancel` ends it from any thread, after which the
     * rest and its `report` can still be read. It is to be closed.
     */
    fun ask(prompt: Prompt, options: AnswerOptions = AnswerOptions()): AnswerHandle = handle.generate(prompt, options)

    /** The whole answer to messages. */
    suspend fun answer(messages: List<Message>, options: AnswerOptions = AnswerOptions()): Reply =
        answer(Prompt.Messages(messages), options)

    /** The whole answer to messages, or the whole continuation of a text. */
    suspend fun answer(prompt: Prompt, options: AnswerOptions = AnswerOptions()): Reply = whole { ask(prompt, options) }

    /**
     * The conversation of this name or id; a new one, where nothing has the name, that is kept once something was answered
     * in it.
     */
    fun conversation(reference: String): Conversation = Conversation(handle.conversation(reference))

    /** All conversations, those that were changed last first. */
    val conversations: List<ConversationInfo> get() = handle.conversations()

    /** What a text means to the model, as a vector of length 1. */
    suspend fun embed(text: String): FloatArray = withContext(Dispatchers.IO) { floats(handle.embed(text).vector) }

    /** How likely each token of the vocabulary is to come next, or each of [tokens]: logits, before sampling. */
    suspend fun logits(prompt: Prompt, tokens: List<Int>? = null): FloatArray =
        withContext(Dispatchers.IO) { floats(handle.logits(prompt, tokens).values) }

    /** The tokens of a text by itself. Names of control tokens in it stand for these tokens. */
    fun tokens(text: String): List<Int> = handle.tokens(text)

    /** The text of tokens. */
    fun textOf(tokens: List<Int>): String = handle.textOf(tokens)

    /** Tokens of a prompt. */
    fun countTokens(prompt: Prompt): Long = handle.countTokens(prompt)

    /** Tokens of messages. */
    fun countTokens(messages: List<Message>): Long = countTokens(Prompt.Messages(messages))

    /** What a prompt would find in the cache now, and why not more. Computes and changes nothing. */
    suspend fun explain(prompt: Prompt): Explanation = withContext(Dispatchers.IO) { handle.explain(prompt) }

    /** What messages would find in the cache now. */
    suspend fun explain(messages: List<Message>): Explanation = explain(Prompt.Messages(messages))

    /**
     * Computes what other prompts begin with, and keeps it under a name: in RAM, and on disk, where another process finds
     * it. What the name stood for before is unpinned.
     */
    suspend fun keep(id: String, prompt: Prompt): KeptState =
        withContext(Dispatchers.IO) { handle.keepPrompt(id, prompt) }

    /** Whether this is what is kept under a name, and how much of it need not be computed. */
    suspend fun kept(id: String, prompt: Prompt): KeptState =
        withContext(Dispatchers.IO) { handle.isKept(id, prompt) }

    /** Keeps a system prompt under a name. */
    suspend fun cacheSystemPrompt(id: String, prompt: String): KeptState = keep(id, systemPrompt(prompt))

    /** Whether this system prompt is kept under a name, and no token of it would have to be computed. */
    suspend fun isValid(id: String, prompt: String): Boolean = kept(id, systemPrompt(prompt)).isWarm

    /** Forgets what is kept under a name. Whether there was such a name. */
    suspend fun invalidate(id: String): Boolean = withContext(Dispatchers.IO) { handle.forgetPrompt(id) }

    /** Releases memory to the system, in about 50 ms: for Android's `onTrimMemory`. */
    fun onMemoryPressure(level: MemoryPressure): Released = handle.onMemoryPressure(level)

    /**
     * Gets ready to be killed, in about 100 ms: cancels all answers and makes durable what was computed. For Android's
     * `onStop`. Then no thread of the model runs until something is asked again.
     */
    fun onBackground(): Flushed = handle.onBackground()

    /** Cancels all answers, gives the disk up to two seconds, and stops all threads. */
    override fun close() {
        // The handle itself stays, so that later calls are told that the model is closed; it is a few bytes, and collected.
        handle.shutDown()
    }

    private fun systemPrompt(prompt: String) = Prompt.Messages(listOf(Message.system(prompt)))
}

package dev.kvik.endless

import dev.kvik.Model
import dev.kvik.ModelOptions
import dev.kvik.SharedModel
import dev.kvik.examples.line
import dev.kvik.examples.readLines
import dev.kvik.examples.replace
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.withContext
import java.io.File
import java.util.UUID
import java.util.concurrent.ConcurrentHashMap
import kotlin.time.Duration.Companion.minutes
import kotlin.time.Duration.Companion.seconds

/** What the user has set. */
data class Settings(
    /** The first part of all prompts. */
    val prefix: String = "You are a helpful assistant.",
    /** A model, in words of the system it runs on; none is the embedded one. */
    val model: String? = null,
    val summaries: SummaryContext = SummaryContext.OWN,
)

/** Where summaries are made. */
enum class SummaryContext {
    /** In a context of four bits beside the chat's, as in the document: the weights are there twice meanwhile. */
    OWN,

    /** In the chat's, whose weights are there already: a turn may wait for a step of it. */
    CHAT,
}

/** What a model is opened for. */
enum class Purpose(val kvFormat: String, val parallel: Long) {
    /** A summary in the chat's own context is made beside an answer, not before it. */
    CHAT("q8", 2),
    SUMMARIES("q4", 1),
}

/** 9,000 tokens of Qwen3-0.6B in q8, which takes 57.75 KiB a token. */
private const val CHAT_KV_BYTES = 512L shl 20

/**
 * The old summary, what was said since, and the new one: 5,700 tokens of Qwen3-0.6B in q4, which takes 28.4 KiB a token. No
 * context is asked for: of a model that takes more a token less fits, and that is read.
 */
private const val SUMMARIES_KV_BYTES = 160L shl 20

/** How a model is opened for a purpose by an app whose models have these options. */
fun optionsFor(purpose: Purpose, app: ModelOptions): ModelOptions = when (purpose) {
    Purpose.CHAT -> app.copy(kvFormat = purpose.kvFormat, parallel = purpose.parallel, kvBytes = CHAT_KV_BYTES)
    // Nothing of a summary's context is read again, so none of it is written; half of the time leaves turns the other.
    Purpose.SUMMARIES -> ModelOptions(
        kvFormat = purpose.kvFormat,
        parallel = purpose.parallel,
        kvBytes = SUMMARIES_KV_BYTES,
        timeShare = 0.5,
    )
}

/** How all conversations are answered. */
fun configOf(settings: Settings): ChatConfig =
    ChatConfig(settings.prefix, if (settings.model == null) Words.EMBEDDED else Words.ANY)

/** A conversation in the list. */
data class Head(val id: String, val name: String, val updatedMs: Long, val exchanges: Int)

/** The process's conversations, which are files, and the models that they are answered with. Calls that read suspend. */
class Chats(private val dir: File, private val scope: CoroutineScope, open: suspend (Settings, Purpose) -> Model) {
    @Volatile
    private var known: Settings? = null
    private val sessions = ConcurrentHashMap<String, ChatSession>()

    /** The chat's model. */
    val chat = SharedModel(CHAT_IDLE) { open(settings(), Purpose.CHAT) }

    /** The summaries' model: open while one is made. */
    val summaries = SharedModel(SUMMARIES_IDLE) { open(settings(), Purpose.SUMMARIES) }

    suspend fun settings(): Settings = known ?: withContext(Dispatchers.IO) { read() }.also { known = it }

    /** From now on all is answered so. Conversations stay; what was computed of them with another prefix or model does not. */
    suspend fun change(settings: Settings) {
        withContext(Dispatchers.IO) { replace(settingsFile, settings.run { line(prefix, model, summaries) }) }
        sessions.values.forEach { it.end() }
        sessions.clear()
        known = settings
        chat.close()
        summaries.close()
    }

    /** All conversations, the newest first. */
    suspend fun list(): List<Head> = withContext(Dispatchers.IO) {
        dir.listFiles { file -> file.extension == "tsv" && file != settingsFile }.orEmpty().map(::head).sortedByDescending { it.updatedMs }
    }

    /** A conversation's session, the same one until the settings change. */
    suspend fun session(id: String): ChatSession {
        val settings = settings()
        return sessions.computeIfAbsent(id) { new(it, settings) }
    }

    /** A new conversation's id. It is a file once something was asked in it. */
    fun create(): String = UUID.randomUUID().toString()

    suspend fun rename(id: String, name: String) = withContext(Dispatchers.IO) { TranscriptFile(file(id)).renamed(name) }

    suspend fun delete(id: String) {
        sessions.remove(id)?.end()
        withContext(Dispatchers.IO) { file(id).delete() }
    }

    /** The app is hidden: answers and summaries end, questions become drafts, and what was computed goes to disk. */
    suspend fun onHidden() {
        sessions.values.forEach { it.end() }
        chat.onBackground()
    }

    private fun new(id: String, settings: Settings): ChatSession {
        val config = configOf(settings)
        val summariser = Summariser(if (settings.summaries == SummaryContext.OWN) summaries else chat, config.words)
        return ChatSession(TranscriptFile(file(id)), chat, summariser, config, scope)
    }

    private fun file(id: String) = File(dir, "$id.tsv")

    private val settingsFile get() = File(dir, "settings.tsv")

    private fun head(file: File): Head = TranscriptFile(file).load().run {
        val title = name.ifEmpty { exchanges.firstOrNull()?.question ?: draft.orEmpty() }
        Head(file.nameWithoutExtension, title, file.lastModified(), exchanges.size)
    }

    private fun read(): Settings {
        val fields = readLines(settingsFile).firstOrNull()?.takeIf { it.size == 3 } ?: return Settings()
        val summaries = SummaryContext.entries.firstOrNull { it.name == fields[2] } ?: SummaryContext.OWN
        return Settings(fields[0], fields[1].ifEmpty { null }, summaries)
    }

    private companion object {
        val CHAT_IDLE = 2.minutes

        /** Two contexts have the weights twice; the next summary is dozens of turns away. */
        val SUMMARIES_IDLE = 5.seconds
    }
}

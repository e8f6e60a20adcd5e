package dev.kvik.endless

import dev.kvik.AnswerOptions
import dev.kvik.Model
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
enum class Purpose(val kvFormat: String) { CHAT("q8"), SUMMARIES("q4") }

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
        sessions.values.forEach { it.pause() }
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
        sessions.remove(id)?.pause()
        withContext(Dispatchers.IO) { file(id).delete() }
    }

    /** The app is hidden: answers end, their questions become drafts, and what was computed goes to disk. */
    suspend fun onHidden() {
        sessions.values.forEach { it.pause() }
        chat.onBackground()
    }

    private fun new(id: String, settings: Settings): ChatSession {
        val isEmbedded = settings.model == null
        val words = if (isEmbedded) Words.EMBEDDED else Words.ANY
        val summariser = Summariser(if (settings.summaries == SummaryContext.OWN) summaries else chat, words)
        val config = ChatConfig(settings.prefix, words, if (isEmbedded) AnswerOptions() else CHAT_SAMPLING)
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

        /** What Qwen3's makers recommend without reasoning. */
        val CHAT_SAMPLING = AnswerOptions(temperature = 0.7, topP = 0.8, topK = 20, minP = 0.0)
    }
}

/** Ways to go on with a conversation beyond the context, behind one interface. */
package dev.kvik.endless

import dev.kvik.AnswerOptions
import dev.kvik.Conversation
import dev.kvik.Model
import dev.kvik.ModelOptions
import dev.kvik.Report
import dev.kvik.SharedModel
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.first
import java.io.File
import kotlin.time.Duration.Companion.hours

/** What a conversation is remembered by. */
enum class Memory {
    LIBRARY, OWN, CHAT, WINDOW;

    companion object {
        fun of(name: String): Memory = valueOf(name.uppercase())
    }
}

/** A conversation that goes on in a directory, also after a kill. */
interface Talker {
    /** Turns that were answered. */
    suspend fun answered(): Int

    /** Takes back the turns from an index on. */
    suspend fun takeBack(from: Int)

    /** An answer's text, and what it took. */
    suspend fun say(text: String): Pair<String, Report>
}

/** The name of the library's conversation. */
private const val NAME = "endless"

private val BRIEF = AnswerOptions(maxTokens = 64, reasoning = false)

/** Talks, and closes all that was opened for it. */
suspend fun <T> talking(path: String, dir: File, memory: Memory, action: suspend (Talker) -> T): T = when (memory) {
    Memory.LIBRARY -> Model.open(path, options(dir, Purpose.CHAT)).use { action(Remembered(it, it.conversation(NAME))) }
    else -> inThreeParts(path, dir, memory, action)
}

private suspend fun <T> inThreeParts(path: String, dir: File, memory: Memory, action: suspend (Talker) -> T): T {
    val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)
    val chat = SharedModel(1.hours) { Model.open(path, options(dir, Purpose.CHAT)) }
    val summaries = if (memory == Memory.OWN) SharedModel(1.hours) { Model.open(path, options(dir, Purpose.SUMMARIES)) } else chat
    val summariser = if (memory == Memory.WINDOW) null else Summariser(summaries, Words.EMBEDDED)
    val config = ChatConfig(Settings().prefix, Words.EMBEDDED, BRIEF)
    try {
        return action(InThreeParts(ChatSession(TranscriptFile(File(dir, "$NAME.tsv")), chat, summariser, config, scope)))
    } finally {
        scope.cancel()
        chat.close()
        summaries.close()
    }
}

/** The chat has what it computes on disk; a summary's context is of no use afterwards. */
private fun options(dir: File, purpose: Purpose) = ModelOptions(
    kvBytes = 24L shl 20,
    kvFormat = purpose.kvFormat,
    parallel = purpose.parallel,
    diskDir = dir.resolve("cache").path.takeIf { purpose == Purpose.CHAT },
    conversationsDir = dir.resolve("conversations").path.takeIf { purpose == Purpose.CHAT },
)

private class Remembered(private val model: Model, private val conversation: Conversation) : Talker {
    override suspend fun answered(): Int = if (model.conversations.isEmpty()) 0 else conversation.messages().size / 2

    override suspend fun takeBack(from: Int) = conversation.takeBack(2L * from)

    override suspend fun say(text: String): Pair<String, Report> = conversation.answer(text, BRIEF).run { this.text to report }
}

private class InThreeParts(private val session: ChatSession) : Talker {
    override suspend fun answered(): Int = session.state.first { it.isLoaded }.transcript.exchanges.size

    override suspend fun takeBack(from: Int) {
        session.takeBack(from)
        check(session.state.value.failure == null) { session.state.value.failure.orEmpty() }
    }

    override suspend fun say(text: String): Pair<String, Report> {
        session.state.first { it.isLoaded }
        checkNotNull(session.ask(text)) { "an answer is still being made" }.join()
        val state = session.state.value
        check(state.failure == null) { state.failure.orEmpty() }
        return state.transcript.exchanges.last().answer to checkNotNull(state.report)
    }
}

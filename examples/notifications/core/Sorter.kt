package dev.kvik.notifications

import dev.kvik.KvikException
import dev.kvik.Model
import dev.kvik.SharedModel
import dev.kvik.examples.line
import dev.kvik.examples.readLines
import dev.kvik.examples.replace
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.channels.BufferOverflow
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import java.io.File
import java.io.IOException
import kotlin.time.Duration.Companion.minutes

/** A notification as the system posts it. One that is posted again, with the same text, is the same. */
data class Posted(val key: String, val atMs: Long, val notification: Notification)

/** What the sorter does at the moment. */
enum class Phase { RESTING, OPENING, SORTING }

/** All that the screen shows. */
data class State(
    val phase: Phase = Phase.RESTING,
    /** How the system prompt was found, since the process began. */
    val prepared: Prepared? = null,
    /** The newest first. */
    val verdicts: List<Verdict> = emptyList(),
    val settings: Settings = Settings(),
    /** Whether the files were read: what is above is the user's. */
    val isLoaded: Boolean = false,
    /** The last failure, in the words of kvik. */
    val failure: String? = null,
)

/** What the user has set: how to sort, and with which model, in words of the system it runs on; none is the embedded one. */
data class Settings(val preferences: Preferences = Preferences(), val model: String? = null)

/**
 * The process's sorter: notifications wait in a queue, and are sorted one after the other with one model. It works behind
 * the activity and the service that share it, and ends with the process.
 */
class Sorter(private val dir: File, open: suspend (Settings) -> Model, private val scope: CoroutineScope) {
    private val changes = MutableStateFlow(State())

    /** The screen's state. */
    val state: StateFlow<State> = changes.asStateFlow()

    /** The model, to be told what the system wants. */
    val shared = SharedModel(IDLE) { open(state.value.settings) }

    private val journal = Journal(File(dir, "verdicts.tsv"), VERDICTS_MAX)

    // A burst of notifications may not fill the memory; the oldest that wait are the least urgent.
    private val queue = Channel<Posted>(WAITING_MAX, BufferOverflow.DROP_OLDEST)

    /** One classifier is right for one model and one hash of the system prompt. */
    private val lock = Mutex()
    private var classifier: Ready? = null

    private class Ready(val model: Model, val hash: String, val classifier: Classifier)

    init {
        scope.launch {
            reporting { withContext(Dispatchers.IO) { load() } }
            val seen = Seen()
            for (posted in queue) if (seen.isNew(posted)) reporting { sort(posted) }
        }
    }

    /** Takes a notification, at once. */
    fun offer(posted: Posted) {
        queue.trySend(posted)
    }

    /** Holds the model open, and its prompt computed, until the caller is cancelled: while the screen is seen. */
    suspend fun keepWarm() {
        state.first { it.isLoaded }
        reporting {
            changes.update { it.copy(phase = Phase.OPENING) }
            shared.use {
                prepared(it)
                awaitCancellation()
            }
        }
    }

    /** As [change], behind a caller that does not wait. */
    fun changeLater(settings: Settings) {
        scope.launch { change(settings) }
    }

    /** Sorts by other settings from now on. The prompt is computed again only where its hash is another. */
    suspend fun change(settings: Settings) = reporting {
        withContext(Dispatchers.IO) { replace(settingsFile, settings.preferences.write() + line("model", settings.model)) }
        val isOther = settings.model != state.value.settings.model
        changes.update { it.copy(settings = settings) }
        if (isOther) shared.close()
        shared.use { prepared(it) }
    }

    /** Forgets all verdicts. */
    suspend fun clear() {
        changes.update { it.copy(verdicts = emptyList(), failure = null) }
        withContext(Dispatchers.IO) { journal.clear() }
    }

    private val settingsFile get() = File(dir, "settings.tsv")

    private fun load() {
        val text = if (settingsFile.exists()) settingsFile.readText() else ""
        val model = readLines(settingsFile).firstOrNull { it[0] == "model" }?.getOrNull(1)?.ifEmpty { null }
        val verdicts = journal.load()
        changes.update { it.copy(settings = Settings(Preferences.read(text), model), verdicts = verdicts, isLoaded = true) }
    }

    private suspend fun sort(posted: Posted) = try {
        sortOnce(posted)
    } catch (closed: KvikException.Closed) {
        // The user has chosen another model meanwhile.
        sortOnce(posted)
    }

    private suspend fun sortOnce(posted: Posted) = shared.use { model ->
        val ready = prepared(model)
        changes.update { it.copy(phase = Phase.SORTING) }
        val verdict = Verdict(posted.atMs, posted.notification, ready.classify(posted.notification))
        val verdicts = (listOf(verdict) + state.value.verdicts).take(VERDICTS_MAX)
        withContext(Dispatchers.IO) { journal.add(verdicts) }
        changes.update { it.copy(phase = Phase.RESTING, verdicts = verdicts, failure = null) }
    }

    /** The classifier of this model and these preferences, whose prompt is computed. */
    private suspend fun prepared(model: Model): Classifier = lock.withLock {
        val preferences = state.value.settings.preferences
        val ready = classifier
        if (ready != null && ready.model === model && ready.hash == preferences.hash) return@withLock ready.classifier
        changes.update { it.copy(phase = Phase.OPENING) }
        val options = Classifier.OPTIONS.copy(constraint = preferences.constraint())
        val new = Classifier(model, preferences, options)
        val prepared = new.prepare()
        classifier = Ready(model, preferences.hash, new)
        changes.update { it.copy(phase = Phase.RESTING, prepared = prepared, failure = null) }
        new
    }

    /** Shows a failure, and goes on: the next notification may be answered. */
    private suspend fun reporting(action: suspend () -> Unit) {
        try {
            action()
        } catch (failure: KvikException) {
            changes.update { it.copy(phase = Phase.RESTING, failure = failure.message) }
        } catch (failure: IOException) {
            changes.update { it.copy(phase = Phase.RESTING, failure = failure.message) }
        } catch (failure: SecurityException) {
            // The system refuses what was allowed when it was set.
            changes.update { it.copy(phase = Phase.RESTING, failure = failure.message) }
        }
    }

    private companion object {
        /** Verdicts that are kept and shown. */
        const val VERDICTS_MAX = 200

        /** Notifications that wait at most. */
        const val WAITING_MAX = 64

        /** An unused model is closed after this: its weights are most of the process. */
        val IDLE = 5.minutes
    }
}

/** What was posted lately: apps post a notification again and again while a bar in it moves. */
private class Seen {
    private val recent = LinkedHashMap<String, Notification>()

    fun isNew(posted: Posted): Boolean {
        val before = recent.remove(posted.key)
        recent[posted.key] = posted.notification
        if (recent.size > RECENT_MAX) recent.remove(recent.keys.first())
        return before != posted.notification
    }

    private companion object {
        const val RECENT_MAX = 256
    }
}

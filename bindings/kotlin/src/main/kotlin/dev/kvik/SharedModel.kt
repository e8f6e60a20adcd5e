package dev.kvik

import kotlinx.coroutines.CoroutineExceptionHandler
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.delay
import kotlinx.coroutines.launch
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import kotlin.time.Duration

/**
 * The one model of a process that activities and services share. The first use opens it, whoever asks meanwhile waits for
 * the same opening, and it is closed when it was not used for a while: its weights are most of an app's memory, and with a
 * `diskDir` the next use finds all that was computed.
 */
class SharedModel(private val idle: Duration, private val open: suspend () -> Model) {
    // What fails behind the caller's back fails the next use too, which tells its caller.
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default + CoroutineExceptionHandler { _, _ -> })
    private val lock = Mutex()
    private var model: Model? = null
    private var users = 0
    private var closing: Job? = null

    /** Does something with the model, which stays open meanwhile. */
    suspend fun <T> use(action: suspend (Model) -> T): T {
        val opened = acquire()
        try {
            return action(opened)
        } finally {
            withContext(NonCancellable) { release() }
        }
    }

    /** Returns memory to the system; where that wants all and nobody uses the model, its weights too. Does not wait. */
    fun onMemoryPressure(level: MemoryPressure): Job = scope.launch {
        lock.withLock {
            if (level == MemoryPressure.CRITICAL && users == 0) shut() else blocking { it.onMemoryPressure(level) }
        }
    }

    /**
     * Makes durable what was computed, for a process that may be killed. Answers that others still read are not cancelled,
     * unlike those of [Model.onBackground]: a service may go on. Does not wait.
     */
    fun onBackground(): Job = scope.launch {
        lock.withLock { if (users == 0) blocking { it.onBackground() } }
    }

    /** Closes the model, so that the next use opens it anew, perhaps another one. Answers that run are cancelled. */
    suspend fun close() = lock.withLock { shut() }

    private suspend fun acquire(): Model = lock.withLock {
        closing?.cancel()
        // A caller that is cancelled meanwhile would lose the opened model, and its directory would stay locked.
        val opened = model ?: withContext(NonCancellable) { open().also { model = it } }
        users += 1
        opened
    }

    private suspend fun release() = lock.withLock {
        users -= 1
        if (users == 0) closing = scope.launch { closeWhenIdle() }
    }

    private suspend fun closeWhenIdle() {
        delay(idle)
        lock.withLock { if (users == 0) shut() }
    }

    private suspend fun shut() = try {
        blocking { it.close() }
    } finally {
        model = null
    }

    private suspend fun blocking(action: (Model) -> Unit) {
        model?.let { withContext(NonCancellable + Dispatchers.IO) { action(it) } }
    }
}

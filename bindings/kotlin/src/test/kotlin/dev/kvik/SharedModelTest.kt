package dev.kvik

import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.Assert.assertEquals
import org.junit.Assert.assertSame
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test
import kotlin.time.Duration
import kotlin.time.Duration.Companion.hours

/** One model for a whole process. */
class SharedModelTest {
    private val path = System.getProperty("kvik.model")
    private val opened = mutableListOf<Model>()

    private fun shared(idle: Duration) = SharedModel(idle) {
        Model.open(path, ModelOptions(kvBytes = 64L shl 20, threads = 2)).also { opened += it }
    }

    private fun test(action: suspend () -> Unit) = runBlocking { withTimeout(60_000) { action() } }

    @Test
    fun whoeverAsksMeanwhileWaitsForTheSameOpening() = test {
        val shared = shared(1.hours)
        val models = coroutineScope { (1..8).map { async { shared.use { it } } }.awaitAll() }
        models.forEach { assertSame(models.first(), it) }
        assertEquals(1, opened.size)
        shared.close()
    }

    @Test
    fun anUnusedModelIsClosedAndTheNextUseOpensItAgain() = test {
        val shared = shared(Duration.ZERO)
        shared.use { it.countTokens(Prompt.Text("a")) }
        while (opened.single().isOpen()) delay(1)
        shared.use { assertTrue(it.isOpen()) }
        assertEquals(2, opened.size)
        shared.close()
    }

    @Test
    fun aSystemThatWantsAllTakesAModelThatNobodyUses() = test {
        val shared = shared(1.hours)
        shared.use { model ->
            shared.onBackground().join()
            shared.onMemoryPressure(MemoryPressure.CRITICAL).join()
            assertTrue(model.isOpen())
        }
        shared.onMemoryPressure(MemoryPressure.MODERATE).join()
        shared.onBackground().join()
        assertTrue(opened.single().isOpen())
        shared.onMemoryPressure(MemoryPressure.CRITICAL).join()
        assertTrue(!opened.single().isOpen())
    }

    @Test
    fun aCallerThatIsCancelledWhileItOpensLeavesItForOthers() = test {
        val (begun, go) = CompletableDeferred<Unit>() to CompletableDeferred<Unit>()
        val shared = SharedModel(1.hours) {
            begun.complete(Unit)
            go.await()
            Model.open(path, ModelOptions(kvBytes = 64L shl 20)).also { opened += it }
        }
        coroutineScope {
            val first = launch { shared.use { } }
            begun.await()
            first.cancel()
            go.complete(Unit)
            first.join()
            assertSame(opened.single(), shared.use { it })
        }
        shared.close()
    }

    @Test
    fun aFailureIsToldAndTheNextUseTriesAgain() = test {
        val paths = ArrayDeque(listOf("/there/is/none.gguf", path))
        val shared = SharedModel(1.hours) { Model.open(paths.removeFirst(), ModelOptions(kvBytes = 64L shl 20)) }
        assertThrows(KvikException.Model::class.java) { runBlocking { shared.use { } } }
        assertTrue(shared.use { it.isOpen() })
        shared.close()
    }

    private fun Model.isOpen() = runCatching { stats }.isSuccess
}

package dev.kvik

import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import java.io.RandomAccessFile
import kotlin.math.abs

/** The face over the embedded model, whose file the system property `kvik.model` names. */
class ModelTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val path = System.getProperty("kvik.model")
    private val messages = listOf(Message.system("Be brief."), Message.user("Who are you?"))

    private fun options(disk: File? = null) =
        ModelOptions(kvBytes = 64L shl 20, threads = 2, diskDir = disk?.path)

    /** Runs a test on a model that is closed afterwards. */
    private fun <T> onModel(options: ModelOptions = options(), test: suspend (Model) -> T): T = runBlocking {
        Model.open(path, options).use { withTimeout(60_000) { test(it) } }
    }

    @Test
    fun piecesAreTheAnswerAndTheReportComesAfterThem() = onModel { model ->
        var report: Report? = null
        val seen = mutableListOf<String>()
        model.chat(messages, AnswerOptions(maxTokens = 16)) { report = it }.collect {
            assertEquals(null, report)
            seen += it.text
        }
        val taken = report!!
        assertEquals(taken.promptTokens, taken.cachedTokens + taken.computedTokens)
        assertEquals(Reason.FIRST_SEEN, taken.reason)
        val again = model.answer(messages, AnswerOptions(maxTokens = 16))
        assertEquals(seen.joinToString(""), again.text)
        assertEquals(1L, again.report.computedTokens)
        assertTrue(again.text.isNotEmpty())
    }

    @Test
    fun eachCollectorAsksAnew() = onModel { model ->
        val answer = model.generate("The river", AnswerOptions(maxTokens = 8))
        assertEquals(answer.toList().joinToString("") { it.text }, answer.toList().joinToString("") { it.text })
        assertEquals(16L, model.stats.generatedTokens)
    }

    @Test
    fun cancellingACollectorCancelsItsAnswer() = onModel { model ->
        val begun = CompletableDeferred<Unit>()
        val reading = launchReading(model, begun)
        begun.await()
        reading.cancelAndJoin()
        awaitIdle(model)
        assertTrue(model.stats.generatedTokens < ENDLESS)
    }

    @Test
    fun aCollectorThatHasEnoughCancelsItsAnswer() = onModel { model ->
        model.chat(messages, endless).first()
        awaitIdle(model)
        assertTrue(model.stats.generatedTokens < ENDLESS)
    }

    @Test
    fun cancellingDoesNotWaitForTheNextPiece() = onModel(options().copy(parallel = 1)) { model ->
        // On a busy machine the first answer may end before the second one is cancelled.
        assertTrue((1..9).any { cancelsWhileAnotherRuns(model) })
    }

    /** Whether an answer that waits is cancelled while another one runs: nothing arrives for it before that has ended. */
    private suspend fun cancelsWhileAnotherRuns(model: Model): Boolean {
        val first = launchReading(model, CompletableDeferred())
        while (model.stats.running == 0L) delay(1)
        val second = launchReading(model, CompletableDeferred())
        while (model.stats.waiting == 0L && first.isActive) delay(1)
        second.cancelAndJoin()
        return first.isActive.also { first.cancelAndJoin() }
    }

    @Test
    fun aFailureOfACollectorIsItsOwn() = onModel { model ->
        val failure = assertThrows(IllegalStateException::class.java) {
            runBlocking { model.chat(messages, endless).collect { error("the window is gone") } }
        }
        assertEquals("the window is gone", failure.message)
        awaitIdle(model)
    }

    @Test
    fun manyCoroutinesAskAtOnce() = onModel { model ->
        val options = AnswerOptions(maxTokens = 12)
        val alone = model.answer(messages, options).text
        val together = coroutineScope {
            (1..8).map { async { model.answer(messages, options).text } }.awaitAll()
        }
        assertEquals(List(8) { alone }, together)
    }

    @Test
    fun aKeptPromptIsWarmInTheNextModelUntilItIsInvalidated() {
        val disk = folder.newFolder()
        val prompt = "You sort notifications. Answer with one word. ".repeat(6)
        onModel(options(disk)) { model ->
            assertFalse(model.isValid("notify", prompt))
            assertTrue(model.cacheSystemPrompt("notify", prompt).isWarm)
            assertEquals(KeptState.Changed, model.kept("notify", Prompt.Text("another")))
        }
        onModel(options(disk)) { model ->
            assertTrue(model.isValid("notify", prompt))
            val asked = listOf(Message.system(prompt), Message.user("Dinner at eight?"))
            val found = model.explain(asked)
            assertTrue("$found", found.knownTokens > found.promptTokens / 2)
            val report = model.answer(asked, AnswerOptions(maxTokens = 1)).report
            assertTrue("$report", report.computedTokens < report.promptTokens / 2)
            assertTrue(model.invalidate("notify"))
            assertFalse(model.isValid("notify", prompt))
            assertFalse(model.invalidate("notify"))
        }
    }

    @Test
    fun aPromptIsCountedAndKeptAsAnAnswerWithItsOptionsReadsIt() = onModel { model ->
        val counts = listOf(null, false).map { reasoning ->
            val options = AnswerOptions(maxTokens = 1, reasoning = reasoning)
            val counted = model.countTokens(messages, options)
            assertEquals(counted, model.explain(messages, options).promptTokens)
            assertEquals(counted, model.answer(messages, options).report.promptTokens)
            counted
        }
        assertTrue("thoughts that are over begin the answer: $counts", counts[0] < counts[1])
        val wrong = AnswerOptions(tools = "[{}]")
        val calls = listOf<suspend () -> Unit>(
            { model.cacheSystemPrompt("notify", "Be brief.", wrong) },
            { model.isValid("notify", "Be brief.", wrong) },
            { model.logits(Prompt.Messages(messages), options = wrong) },
        )
        for (call in calls) assertThrows(KvikException.InvalidArgument::class.java) { runBlocking { call() } }
    }

    @Test
    fun tokensAreBiased() = onModel { model ->
        val token = model.tokens(" river").first()
        val said = listOf(1e9, Double.NEGATIVE_INFINITY).map { bias ->
            val options = AnswerOptions(maxTokens = 1, logitBias = listOf(LogitBias(token, bias)))
            model.answer(Prompt.Text("Once upon a time there was"), options).text
        }
        assertEquals(model.textOf(listOf(token)), said[0])
        assertNotEquals(said[0], said[1])
    }

    @Test
    fun memoryIsReleasedAndTheAnswerIsTheSame() = onModel(options(folder.newFolder())) { model ->
        val options = AnswerOptions(maxTokens = 12)
        val before = model.answer(messages, options).text
        for (level in MemoryPressure.entries) {
            assertTrue(model.onMemoryPressure(level).freeBytes > 0)
            assertEquals(before, model.answer(messages, options).text)
        }
        val durable = model.onBackground()
        assertTrue(durable.isIdle)
        assertEquals(0L, durable.unwrittenBlocks)
        assertEquals(before, model.answer(messages, options).text)
    }

    @Test
    fun aConversationIsKeptAndGoneOnWith() {
        val kept = options(folder.newFolder()).copy(conversationsDir = folder.newFolder().path)
        val brief = AnswerOptions(maxTokens = 24)
        onModel(kept) { model ->
            val conversation = model.conversation("cats")
            assertTrue(conversation.answer("My cat is called Minka.", brief).text.isNotEmpty())
            assertEquals("cats", model.conversations.single().name)
        }
        onModel(kept) { model ->
            val conversation = model.conversation("cats")
            assertTrue(conversation.answer("What is my cat called?", brief).text.contains("Minka"))
            assertEquals(4, conversation.messages().size)
            conversation.say("Tell me all.", endless).first()
            awaitIdle(model)
            assertEquals("what is cancelled leaves nothing behind", 4L, conversation.info().messages)
            conversation.takeBack(2)
            conversation.rename("pets")
            assertEquals(Message.user("My cat is called Minka."), conversation.messages().first())
            assertEquals("pets", conversation.info().name)
            conversation.delete()
            assertEquals(emptyList<ConversationInfo>(), model.conversations)
            assertThrows(KvikException.Conversation::class.java) { runBlocking { conversation.messages() } }
        }
    }

    @Test
    fun answersHaveTheFormThatIsAskedFor() = onModel { model ->
        assertThrows(KvikException.InvalidArgument::class.java) {
            runBlocking { model.answer(messages, AnswerOptions(tools = "[{}]")) }
        }
        val choice = Constraint.Regex("(now|later|never)")
        val sorted = model.answer(messages, AnswerOptions(maxTokens = 16, constraint = choice)).text
        assertTrue(sorted, sorted in setOf("now", "later", "never"))
        val tools = """[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
            "properties": {"city": {"enum": ["Cork", "Oslo"]}}, "required": ["city"], "additionalProperties": false}}}]"""
        val called = model.answer(messages, AnswerOptions(maxTokens = 64, tools = tools, toolChoice = "required"))
        assertEquals("weather", called.calls.first().name)
    }

    @Test
    fun vectorsHaveLengthOne() = onModel { model ->
        val vector = model.embed("a river")
        assertEquals(1f, vector.fold(0f) { sum, x -> sum + x * x }, 1e-4f)
        assertArrayEquals(vector, model.embed("a river"), 0f)
        assertTrue(abs(vector[0]) < 1f)
    }

    @Test
    fun theLikeliestTokenComesNext() = onModel { model ->
        val prompt = Prompt.Text("Once upon a time there was")
        val all = model.logits(prompt)
        val likeliest = all.indices.maxBy { all[it] }
        assertEquals(model.answer(prompt, AnswerOptions(maxTokens = 1)).text, model.textOf(listOf(likeliest)))
        val some = model.tokens("now later never")
        assertArrayEquals(FloatArray(some.size) { all[some[it]] }, model.logits(prompt, some), 0f)
    }

    @Test
    fun aModelComesFromBytesAndFromAPartOfAnOpenFile() = runBlocking {
        val bytes = File(path).readBytes()
        val expect = onModel { it.countTokens(messages) }
        Model.open(bytes, options()).use { assertEquals(expect, it.countTokens(messages)) }
        val around = folder.newFile().apply { writeBytes(ByteArray(6000) + bytes + ByteArray(9)) }
        val opened = RandomAccessFile(around, "r").use {
            Model.open(descriptor(around), 6000, bytes.size.toLong(), options())
        }
        opened.use { assertEquals(expect, it.countTokens(messages)) }
    }

    @Test
    fun failuresAreTyped() = onModel { model ->
        assertThrows(KvikException.Model::class.java) { runBlocking { Model.open("/there/is/none.gguf") } }
        assertThrows(KvikException.PromptTooLong::class.java) {
            runBlocking { model.answer(listOf(Message.user("word ".repeat(9000)))) }
        }
        val negative = assertThrows(KvikException.InvalidArgument::class.java) {
            runBlocking { model.chat(messages, AnswerOptions(temperature = -1.0)).collect() }
        }
        assertEquals("`temperature` is negative or no number", negative.message)
    }

    @Test
    fun halfOfASurrogatePairIsAnInvalidArgument() = onModel { model ->
        val half = "a" + "😀".take(1)
        val prompt = Prompt.Text(half)
        val said = listOf(Message.user(half))
        val calls = listOf<suspend () -> Unit>(
            { Model.open(half) },
            { model.tokens(half) },
            { model.countTokens(said) },
            { model.explain(prompt) },
            { model.embed(half) },
            { model.logits(prompt) },
            { model.keep(half, Prompt.Text("a")) },
            { model.kept("a", prompt) },
            { model.invalidate(half) },
            { model.answer(said) },
            { model.answer(messages, AnswerOptions(stop = listOf(half))) },
            { model.chat(said).collect() },
            { model.conversation(half) },
            { model.conversation("a").answer(half) },
            { model.conversation("a").correct(half) },
            { model.conversation("a").rename(half) },
        )
        for (call in calls) {
            val refused = assertThrows(KvikException.InvalidArgument::class.java) { runBlocking { call() } }
            assertEquals("a text has half of a surrogate pair", refused.message)
        }
        assertTrue("a whole pair is a text", model.tokens("😀").isNotEmpty())
    }

    @Test
    fun aClosedModelSaysSoOnAllThreads() = runBlocking {
        val model = Model.open(path, options())
        val begun = CompletableDeferred<Unit>()
        val reading = async(Dispatchers.Default) {
            var report: Report? = null
            model.chat(messages, endless) { report = it }.collect { begun.complete(Unit) }
            report
        }
        val asking = (1..4).map {
            async(Dispatchers.IO) { runCatching { while (true) model.countTokens(messages) }.exceptionOrNull() }
        }
        begun.await()
        model.close()
        asking.awaitAll().forEach { assertTrue("$it", it is KvikException.Closed) }
        assertEquals(Finish.CANCELLED, reading.await()?.finish)
        assertThrows(KvikException.Closed::class.java) { model.stats }
        model.close()
    }

    private fun launchReading(model: Model, begun: CompletableDeferred<Unit>) =
        CoroutineScope(Dispatchers.Default).launch {
            model.chat(messages, endless).collect { begun.complete(Unit) }
        }

    private suspend fun awaitIdle(model: Model) {
        while (model.stats.running + model.stats.waiting > 0) delay(1)
    }

    /** The number of an open file, which Java does not tell; Android's `AssetFileDescriptor` does. */
    private fun descriptor(file: File): Int =
        File("/proc/self/fd").listFiles().orEmpty().first { it.canonicalFile == file.canonicalFile }.name.toInt()

    private companion object {
        /** Tokens that take a while, and fit the context behind a prompt. */
        const val ENDLESS = 1500L

        /** An answer that nothing but its length or its reader ends. */
        val endless = AnswerOptions(maxTokens = ENDLESS, minTokens = ENDLESS, temperature = 0.9)
    }
}

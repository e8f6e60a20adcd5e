package dev.kvik.endless

import dev.kvik.AnswerOptions
import dev.kvik.Message
import dev.kvik.Model
import dev.kvik.ModelOptions
import dev.kvik.SharedModel
import dev.kvik.assistant
import dev.kvik.examples.readLines
import dev.kvik.system
import dev.kvik.user
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotNull
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.time.Duration.Companion.hours

/** What the chat does behind its screens, with the embedded model. */
class EndlessTest {
    @get:Rule
    val folder = TemporaryFolder()

    private fun exchange(number: Int, tokens: Long = 10) = Exchange("question $number", "answer\t$number\n", tokens)

    @Test
    fun aTranscriptIsWhatWasWrittenWholeOfIt() {
        val file = TranscriptFile(File(folder.newFolder(), "a.tsv"))
        assertEquals(Transcript(), file.load())
        (1..4).forEach { file.asked("q"); file.answered(exchange(it)) }
        file.summarised(Summary("all\\n", 7, 2, 1))
        file.renamed("cats")
        file.asked("cut off")
        val whole = file.load()
        assertEquals(listOf(3, 4).map { exchange(it) }, whole.recent)
        assertEquals(Transcript("cats", (1..4).map { exchange(it) }, Summary("all\\n", 7, 2, 1), "cut off"), whole)
        file.file.appendText("answered\tcut off\ttoo")
        assertEquals("a line that a kill cut off was never written", whole, file.load())
        file.withdrawn()
        file.tookBack(3)
        assertEquals(whole.copy(exchanges = whole.exchanges.take(3), draft = null), file.load())
        file.tookBack(1)
        assertNull("a summary of what was taken back is none", file.load().summary)
    }

    @Test
    fun aSampleHasBeginningEndAndStepsBetween() {
        val all = (1..100).map { exchange(it) }
        assertEquals(all, sample(all, 1000))
        val some = sample(all, 400).map { it.question.removePrefix("question ").toInt() }
        assertEquals((1..10).toList(), some.take(10))
        assertEquals((91..100).toList(), some.takeLast(10))
        assertEquals(some.sorted().distinct(), some)
        assertTrue("$some", some.size in 30..40)
        val transcript = Transcript(exchanges = all, summary = Summary("", 1, 20, 1))
        assertEquals((21..70).map { exchange(it) }, toSummarise(transcript, 300))
        assertTrue(toSummarise(transcript, 800).isEmpty())
    }

    @Test
    fun aLongExchangeIsShortenedAndHidesNoOther() {
        val long = Exchange("What was said?", "first " + "and so on ".repeat(5000) + "last", 9999)
        val short = sample(listOf(long), 100).single()
        assertEquals(long.question, short.question)
        assertTrue(short.answer, short.answer.startsWith("first ") && short.answer.endsWith(" last"))
        assertTrue("$short", short.tokens <= 100 / 4 && short.answer.length < 200)
        val small = (1..30).map { exchange(it) }
        for (all in listOf(listOf(long) + small, small + long, small.take(1) + long + small.drop(1))) {
            val some = sample(all, 100)
            assertTrue("$some", some.sumOf { it.tokens } <= 100)
            assertTrue("$some", some.any { it in small.subList(5, 25) })
        }
        val pairs = sample(listOf(long.copy(answer = "x" + "😀".repeat(9999) + "x")), 100).single().answer
        assertEquals("whole characters", pairs, String(pairs.toByteArray()))
        assertTrue("there is no room", sample(listOf(long), 3).isEmpty())
    }

    @Test
    fun whatIsFilledInIsNotReadForPlaces() {
        assertEquals("{b} x {c}", filled("{a} {b} {c}", mapOf("a" to "{b}", "b" to "x")))
    }

    @Test
    fun aConversationGoesOnBeyondItsPartsAndIsThereInTheNextProcess() {
        val dir = folder.newFolder()
        val kept = onSession(dir) { session ->
            session.say("My cat is called Minka.")
            // The model's whole context, and again.
            while (session.state.value.transcript.summary == null) {
                session.say("It rains and rains, and the river rises in the valley. ".repeat(5))
                session.settle()
            }
            val state = session.say("What is my cat called?")
            assertTrue(state.transcript.covered > 0)
            val parts = checkNotNull(state.parts)
            assertEquals(state.transcript.exchanges.size - 1, parts.summarised + parts.dropped + parts.recent)
            val report = checkNotNull(state.report)
            assertTrue("computed ahead: $report", report.computedTokens < report.promptTokens / 2)
            state.transcript
        }
        onSession(dir) { session ->
            assertEquals(kept, session.state.first { it.isLoaded }.transcript)
            session.takeBack(1)
            assertEquals(kept.exchanges.take(1), session.state.value.transcript.exchanges)
            assertNull(session.state.value.transcript.summary)
        }
    }

    @Test
    fun aQuestionWhoseAnswerIsStoppedIsADraftAgain() {
        val dir = folder.newFolder()
        onSession(dir, AnswerOptions(minTokens = 128, temperature = 0.9)) { session ->
            session.state.first { it.isLoaded }
            assertNull("there is nothing to ask", session.ask("  "))
            assertNotNull(session.ask("Tell me all."))
            assertNull("one answer at a time", session.ask("And more."))
            session.state.first { !it.answering.isNullOrEmpty() }
            session.end()
            assertNull(session.state.value.answering)
            assertEquals(Transcript(draft = "Tell me all."), session.state.value.transcript)
        }
        onSession(dir) { session ->
            assertEquals("Tell me all.", session.state.first { it.isLoaded }.transcript.draft)
            session.withdraw()
        }
        onSession(dir) { assertNull(it.state.first { state -> state.isLoaded }.transcript.draft) }
    }

    @Test
    fun aQuestionWhoseAnswerTheSystemCancelsIsADraftAgain() = inScope { scope ->
        val chat = SharedModel(1.hours) { open(null, Purpose.CHAT, timeShare = 0.05) }
        val config = ChatConfig(Settings().prefix, Words.EMBEDDED, AnswerOptions(minTokens = 128, temperature = 0.9))
        val file = TranscriptFile(File(folder.newFolder(), "one.tsv"))
        val session = ChatSession(file, chat, null, config, scope)
        try {
            session.state.first { it.isLoaded }
            val answering = checkNotNull(session.ask("Tell me all."))
            session.state.first { !it.answering.isNullOrEmpty() }
            chat.use { it.onBackground() }
            answering.join()
            assertNotNull(session.state.value.failure)
            assertEquals(Transcript(draft = "Tell me all."), session.state.value.transcript)
            assertEquals(Transcript(draft = "Tell me all."), file.load())
        } finally {
            chat.close()
        }
    }

    @Test
    fun aConversationThatCannotBeReadOrWrittenSaysSo() {
        val dir = folder.newFolder()
        onSession(dir) { session ->
            session.state.first { it.isLoaded }
            File(dir, "conversation.tsv").mkdir()
            session.takeBack(0)
            assertNotNull(session.state.value.failure)
        }
        onSession(dir) { session -> session.state.first { it.failure != null } }
    }

    @Test
    fun conversationsAreListedOpenedAndDeletedAndSettingsKept() {
        val dir = folder.newFolder()
        onChats(dir) { chats ->
            val session = chats.session("one")
            session.say("Hello.")
            assertEquals(session, chats.session("one"))
            assertEquals(listOf("Hello." to 1), chats.list().map { it.name to it.exchanges })
            chats.rename("one", "greetings")
            chats.change(Settings("Be\tbrief.", null, SummaryContext.CHAT))
            chats.session("one").say("And again.")
            chats.session("two").say("Bye.")
        }
        onChats(dir) { chats ->
            assertEquals(Settings("Be\tbrief.", null, SummaryContext.CHAT), chats.settings())
            assertEquals(setOf("greetings" to 2, "Bye." to 1), chats.list().map { it.name to it.exchanges }.toSet())
            chats.delete("one")
            chats.onHidden()
            assertEquals(listOf("two"), chats.list().map { it.id })
        }
    }

    @Test
    fun aModelThatMayNoLongerBeReadIsSaidAndTheNextOneIsTried() = onChats(folder.newFolder()) { chats ->
        chats.change(Settings(model = "content://revoked"))
        val session = chats.session("one")
        session.keepWarm()
        assertEquals("Permission Denial", session.state.value.failure)
        checkNotNull(session.ask("Hello.")).join()
        assertEquals("Permission Denial", session.state.value.failure)
        chats.change(Settings())
        chats.session("one").say("Hello.")
    }

    @Test
    fun theSamplingIsLeftToTheModelWhicheverIsChosen() {
        for (model in listOf(null, "content://chosen")) {
            assertEquals(AnswerOptions(), configOf(Settings(model = model)).answer)
        }
    }

    @Test
    fun aPromptIsCountedAsItIsAsked() = onChats(folder.newFolder()) { chats ->
        chats.chat.use { model ->
            val bounds = Bounds.of(model.contextTokens)
            val (messages, parts) = ThreeParts("Be brief.", Words.EMBEDDED).messages(model, Transcript(), null, bounds)
            assertEquals(model.countTokens(messages, AnswerOptions(reasoning = false)), parts.prefixTokens)
            assertTrue(parts.prefixTokens > model.countTokens(messages))
        }
    }

    @Test
    fun anExchangesTokensAreThoseThatItAddsToAPrompt() = onChats(folder.newFolder()) { chats ->
        val session = chats.session("one")
        repeat(10) { session.say("It is day $it.") }
        val exchanges = session.state.value.transcript.exchanges
        val prefix = listOf(Message.system(chats.settings().prefix))
        val all = prefix + exchanges.flatMap { listOf(Message.user(it.question), Message.assistant(it.answer)) }
        val added = chats.chat.use { it.countTokens(all) - it.countTokens(prefix) }
        assertEquals(added, exchanges.sumOf { it.tokens })
    }

    @Test
    fun anExchangesTokensAreItsOwnWhereATemplateWritesThePrefixIntoTheFirstQuestion() = runBlocking {
        val bytes = File(PATH).readBytes()
        val at = String(bytes, Charsets.ISO_8859_1).indexOf("{%- for m in messages %}")
        val length = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).getLong(at - Long.SIZE_BYTES).toInt()
        // Spaces within the last tag make it as long as the embedded one.
        val template = FOLDING.trim().removeSuffix("%}").padEnd(length - 2) + "%}"
        template.toByteArray().copyInto(bytes, at)
        Model.open(bytes, ModelOptions(kvBytes = 64L shl 20)).use { model ->
            val prefixes = listOf("Be brief.", "Be brief. ".repeat(50))
            val tokens = prefixes.map { ThreeParts(it, Words.ANY).tokensOf(model, "Who are you?", "A very small model.") }
            assertEquals(tokens[0], tokens[1])
        }
    }

    @Test
    fun aSummaryEndsBeforeWhatEndsItsConversation() {
        whileSummarised(0, emptyList()) { it.delete("one") }
        whileSummarised(0, listOf(0)) { it.session("one").takeBack(0) }
        whileSummarised(0, listOf(6)) { it.onHidden() }
        // What was said of it until then is half a sentence.
        whileSummarised(2, listOf(6)) { it.change(Settings("Be brief.")) }
    }

    /** Does something when a summary has at least so many tokens, and looks how many exchanges each conversation has then. */
    private fun whileSummarised(tokensMin: Long, expect: List<Int>, action: suspend (Chats) -> Unit) {
        val dir = folder.newFolder()
        val file = tellFacts(File(dir, "chats/one.tsv"))
        onChats(dir, summariesShare = 0.005) { chats ->
            val session = chats.session("one")
            session.say("Hello.")
            session.state.first { it.isSummarising }
            while (chats.summaries.use { it.stats.generatedTokens } < tokensMin) delay(10)
            action(chats)
            assertFalse(session.state.value.isSummarising)
            session.settle()
            assertEquals(expect, chats.list().map { it.exchanges })
            assertTrue(readLines(file.file).none { it.first() == "summary" })
        }
    }

    @Test
    fun aQuestionIsAnsweredBesideASummaryInTheChatsOwnContext() = inScope { scope ->
        val chat = SharedModel(1.hours) { open(null, Purpose.CHAT, timeShare = 0.01) }
        val config = ChatConfig(Settings().prefix, Words.EMBEDDED, AnswerOptions(maxTokens = 2))
        val file = tellFacts(File(folder.newFolder(), "one.tsv"))
        val session = ChatSession(file, chat, Summariser(chat, Words.EMBEDDED), config, scope)
        try {
            session.say("Hello.")
            session.state.first { it.isSummarising }
            while (chat.use { it.stats.running } == 0L) delay(1)
            val state = session.say("Goodbye.")
            assertTrue("the question did not wait for the summary", state.isSummarising)
            assertNull(state.transcript.summary)
            session.settle()
            assertNotNull(session.state.value.transcript.summary)
        } finally {
            chat.close()
        }
    }

    /** A conversation whose next answer is followed by a summary: facts, in exchanges that are said to be long. */
    private fun tellFacts(file: File) = TranscriptFile(file).apply {
        listOf("gate code", "flat number", "locker code", "order number", "room number").forEachIndexed { at, fact ->
            answered(Exchange("Please remember that my $fact is ${417 + at}.", "I will remember that.", 400))
        }
    }

    private suspend fun ChatSession.say(text: String): ChatState {
        state.first { it.isLoaded }
        checkNotNull(ask(text)).join()
        return state.value.also { assertNull(it.failure) }
    }

    /** A process that goes on with a conversation, ended at once. */
    private fun <T> onSession(
        dir: File,
        answer: AnswerOptions = AnswerOptions(),
        test: suspend (ChatSession) -> T,
    ): T = inScope { scope ->
        val chat = SharedModel(1.hours) { open(File(dir, "cache"), Purpose.CHAT) }
        val summaries = SharedModel(1.hours) { open(null, Purpose.SUMMARIES) }
        val config = ChatConfig("You are a helpful assistant.", Words.EMBEDDED, answer)
        val file = TranscriptFile(File(dir, "conversation.tsv"))
        try {
            test(ChatSession(file, chat, Summariser(summaries, Words.EMBEDDED), config, scope))
        } finally {
            chat.close()
            summaries.close()
        }
    }

    private fun onChats(dir: File, summariesShare: Double? = null, test: suspend (Chats) -> Unit) = inScope { scope ->
        val chats = Chats(File(dir, "chats"), scope) { settings, purpose ->
            if (settings.model != null) throw SecurityException("Permission Denial")
            open(null, purpose, summariesShare.takeIf { purpose == Purpose.SUMMARIES })
        }
        try {
            test(chats)
        } finally {
            chats.chat.close()
            chats.summaries.close()
        }
    }

    private fun <T> inScope(test: suspend (CoroutineScope) -> T): T {
        val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)
        return runBlocking { withTimeout(120_000) { test(scope) } }.also { scope.cancel() }
    }

    /** Opens a model as the app does, with less memory. */
    private suspend fun open(cache: File?, purpose: Purpose, timeShare: Double? = null): Model {
        val options = optionsFor(purpose, ModelOptions(diskDir = cache?.path))
        val kvBytes = if (purpose == Purpose.CHAT) 64L shl 20 else SUMMARIES_BYTES
        return Model.open(PATH, options.copy(kvBytes = kvBytes, timeShare = timeShare ?: options.timeShare))
    }

    private companion object {
        val PATH: String = System.getProperty("kvik.model")

        /** A template as Gemma's: a system text stands before the first question, and nowhere without one. */
        const val FOLDING = """
{%- if messages[0].role == 'system' %}{%- set s = messages[0].content + '\n\n' %}{%- set rest = messages[1:] %}
{%- else %}{%- set s = '' %}{%- set rest = messages %}{%- endif %}
{%- for m in rest %}
{{- '<|im_start|>' + m.role + '\n' + (s if loop.first else '') + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

        /** 2,600 tokens: the embedded model's whole context, and less than the document's 4,096. */
        const val SUMMARIES_BYTES = 2L shl 20
    }
}

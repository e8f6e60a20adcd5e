package dev.kvik.endless

import dev.kvik.AnswerOptions
import dev.kvik.Model
import dev.kvik.ModelOptions
import dev.kvik.SharedModel
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNotNull
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
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
        assertTrue(sample(listOf(exchange(1, 9999)), 100).isEmpty())
        val transcript = Transcript(exchanges = all, summary = Summary("", 1, 20, 1))
        assertEquals((21..70).map { exchange(it) }, toSummarise(transcript, 300))
        assertTrue(toSummarise(transcript, 800).isEmpty())
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
            session.pause()
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

    private fun onChats(dir: File, test: suspend (Chats) -> Unit) = inScope { scope ->
        val chats = Chats(File(dir, "chats"), scope) { _, purpose -> open(null, purpose) }
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

    private suspend fun open(cache: File?, purpose: Purpose) =
        Model.open(PATH, ModelOptions(kvBytes = 64L shl 20, kvFormat = purpose.kvFormat, diskDir = cache?.path))

    private companion object {
        val PATH: String = System.getProperty("kvik.model")
    }
}

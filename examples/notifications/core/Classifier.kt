package dev.kvik.notifications

import dev.kvik.AnswerOptions
import dev.kvik.Finish
import dev.kvik.KeptState
import dev.kvik.KvikException
import dev.kvik.Message
import dev.kvik.Model
import dev.kvik.Prompt
import dev.kvik.Report
import dev.kvik.examples.beginning
import dev.kvik.examples.withoutHalves
import dev.kvik.isWarm
import dev.kvik.system
import dev.kvik.user

/** What an app shows to its user. */
data class Notification(val app: String, val title: String, val body: String)

/** Where a notification belongs, and how urgent it is, from 1 (now) to 5 (never). */
data class Sorted(val folder: String, val priority: Int)

/** A notification's place, or none where the model answered something else, and what the answer took. */
data class Classified(val sorted: Sorted?, val report: Report)

/** How the system prompt was found: its tokens, whether it was there already, and how long that took. */
data class Prepared(val tokens: Long, val found: Found, val ms: Double)

/** What was known of the system prompt before: it was kept, another one was (the user changed something), or none. */
enum class Found { KEPT, CHANGED, NOTHING }

/** The prompts. The first one is the same for all notifications, so that it is computed once. */
class PromptBuilder(private val preferences: Preferences) {
    /** What does not change until the user changes a folder, a priority or the instructions. */
    fun systemPrompt(): String = buildString {
        appendLine("You are a notification assistant. Choose one folder and one priority.\n")
        appendLine("Priority levels:")
        preferences.priorities.forEach { (level, meaning) -> appendLine("$level - $meaning") }
        appendLine("\n## Folders")
        preferences.folders.forEach { (name, meaning) -> appendLine("- $name: $meaning") }
        if (preferences.instructions.isNotBlank()) appendLine("\n## Wishes of the user\n${preferences.instructions.trim()}")
        append("\nReply with exactly one JSON object like {\"folder\": \"...\", \"priority\": 3}.")
    }

    /** What is different each time. */
    fun userMessage(notification: Notification): String =
        "App: ${field(notification.app)}\nTitle: ${field(notification.title)}\nBody: ${field(notification.body)}"

    /** One line of bounded length: what another app says must not look like a field of ours, or fill the context. */
    private fun field(text: String): String =
        beginning(withoutHalves(text), FIELD_CHARS_MAX).replace(BREAK, " ").trim()

    private companion object {
        const val FIELD_CHARS_MAX = 800
        val BREAK = Regex("\\s*[\\r\\n\u2028\u2029]+\\s*")
    }
}

/** Sorts notifications into folders, behind a system prompt that stays computed under a name. */
class Classifier(
    private val model: Model,
    preferences: Preferences,
    private val options: AnswerOptions = OPTIONS,
) {
    private val prompts = PromptBuilder(preferences)
    private val system = prompts.systemPrompt()

    /** Makes sure that the system prompt is computed and kept; finds it after a kill, and computes it after a change. */
    suspend fun prepare(): Prepared {
        val from = System.nanoTime()
        // With the options of the answers: a template may write before the system text that reasoning is off.
        val before = model.kept(NAME, Prompt.Messages(listOf(Message.system(system))), options)
        val kept = if (before.isWarm) before else model.cacheSystemPrompt(NAME, system, options)
        val found = when {
            before.isWarm -> Found.KEPT
            before is KeptState.Changed -> Found.CHANGED
            else -> Found.NOTHING
        }
        return Prepared((kept as? KeptState.Kept)?.tokens ?: 0, found, (System.nanoTime() - from) / 1e6)
    }

    suspend fun classify(notification: Notification): Classified {
        val reply = model.answer(messages(notification), options)
        // What it had said until then is no verdict.
        if (reply.report.finish == Finish.CANCELLED) throw KvikException.Closed("the model was closed while it answered")
        return Classified(read(reply.text), reply.report)
    }

    /** What the model is asked about a notification. */
    fun messages(notification: Notification): List<Message> =
        listOf(Message.system(system), Message.user(prompts.userMessage(notification)))

    companion object {
        /** The name under which the system prompt is kept. */
        const val NAME = "notify"

        /** An answer is one line of JSON. */
        val OPTIONS = AnswerOptions(maxTokens = 48, reasoning = false)

        private val ANSWER = Regex("\"folder\":\\s*\"([^\"]*)\",\\s*\"priority\":\\s*([1-5])")

        private fun read(text: String): Sorted? = ANSWER.find(text)?.destructured?.let { (folder, priority) ->
            Sorted(folder, priority.toInt())
        }
    }
}

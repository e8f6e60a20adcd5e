package dev.kvik.notifications

import dev.kvik.AnswerOptions
import dev.kvik.Message
import dev.kvik.Model
import dev.kvik.Report
import dev.kvik.system
import dev.kvik.user

/** What an app shows to its user. */
data class Notification(val app: String, val title: String, val body: String)

/** Where a notification belongs, and how urgent it is, from 1 (now) to 5 (never). */
data class Sorted(val folder: String, val priority: Int)

/** A notification's place, or none where the model answered something else, and what the answer took. */
data class Classified(val sorted: Sorted?, val report: Report)

/** The prompts. The first one is the same for all notifications, so that it is computed once. */
class PromptBuilder(private val folders: Map<String, String>) {
    /** What does not change until the user changes a folder. */
    fun systemPrompt(): String = buildString {
        appendLine("You are a notification assistant. Choose one folder and one priority.\n")
        appendLine("Priority levels:")
        PRIORITIES.forEach { (level, meaning) -> appendLine("$level - $meaning") }
        appendLine("\n## Folders")
        folders.forEach { (name, meaning) -> appendLine("- $name: $meaning") }
        append("\nReply with exactly one JSON object like {\"folder\": \"...\", \"priority\": 3}.")
    }

    /** What is different each time. */
    fun userMessage(notification: Notification): String =
        "App: ${notification.app}\nTitle: ${notification.title}\nBody: ${notification.body}"

    private companion object {
        val PRIORITIES = mapOf(
            5 to "can be ignored",
            4 to "low",
            3 to "normal, this week",
            2 to "needs an answer today",
            1 to "emergency, right now",
        )
    }
}

/** Sorts notifications into folders, behind a system prompt that stays computed under a name. */
class Classifier(private val model: Model, folders: Map<String, String>) {
    private val prompts = PromptBuilder(folders)
    private val system = prompts.systemPrompt()

    /** Makes sure that the system prompt is computed and kept; does nothing after a kill, and computes after a change. */
    suspend fun prepare() {
        if (!model.isValid(NAME, system)) {
            model.cacheSystemPrompt(NAME, system)
        }
    }

    suspend fun classify(notification: Notification): Classified {
        val reply = model.answer(messages(notification), OPTIONS)
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

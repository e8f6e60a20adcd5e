package dev.kvik.notifications

import dev.kvik.Constraint
import dev.kvik.examples.fieldsOf
import dev.kvik.examples.line
import java.security.MessageDigest

/** A folder that notifications go into, and what belongs there, in the user's words. */
data class Folder(val name: String, val meaning: String)

/** Why a folder cannot be as the user has written it. */
enum class FolderProblem { NO_NAME, NAME_TAKEN, NAME_HAS_QUOTES, TOO_LONG }

/**
 * What the user says of sorting. The system prompt is made of nothing else, so that it stays computed until something here
 * changes.
 */
data class Preferences(
    val folders: List<Folder> = FOLDERS,
    /** What each priority means, from 1 (now) to 5 (never). */
    val priorities: Map<Int, String> = PRIORITIES,
    /** Wishes beyond folders and priorities. */
    val instructions: String = "",
) {
    /** The hash of the system prompt: what was computed is right as long as this is the same. */
    val hash: String by lazy {
        val digest = MessageDigest.getInstance("SHA-256").digest(PromptBuilder(this).systemPrompt().toByteArray())
        digest.take(HASH_BYTES).joinToString("") { "%02x".format(it) }
    }

    /** Holds an answer to one folder of these and one priority. */
    fun constraint(): Constraint {
        val names = folders.joinToString("|") { literal(it.name) }
        return Constraint.Regex("\\{\"folder\": \"($names)\", \"priority\": [1-5]\\}")
    }

    /** What is wrong with a folder in the place of the one at [at]; nothing where it can be used. */
    fun problemOf(folder: Folder, at: Int?): FolderProblem? = when {
        folder.name.isBlank() -> FolderProblem.NO_NAME
        folder.name.any { it == '"' || it == '\\' || it.isISOControl() } -> FolderProblem.NAME_HAS_QUOTES
        folder.name.length > NAME_CHARS_MAX || folder.meaning.length > TEXT_CHARS_MAX -> FolderProblem.TOO_LONG
        folders.withIndex().any { (index, other) -> index != at && other.name == folder.name } -> FolderProblem.NAME_TAKEN
        else -> null
    }

    /** As lines of a file. */
    fun write(): String = buildString {
        folders.forEach { append(line("folder", it.name, it.meaning)) }
        priorities.forEach { (level, meaning) -> append(line("priority", level, meaning)) }
        append(line("instructions", instructions))
    }

    companion object {
        /** Folders at most; each is some twenty tokens of the prompt. */
        const val FOLDERS_MAX = 32
        const val NAME_CHARS_MAX = 40

        /** Characters of a folder's or a priority's meaning at most. */
        const val TEXT_CHARS_MAX = 200
        const val INSTRUCTIONS_CHARS_MAX = 600

        private const val HASH_BYTES = 6

        private val FOLDERS = listOf(
            Folder("Health", "doctor, pharmacy and test results"),
            Folder("Travel", "boarding passes, hotels and holidays"),
            Folder("Friends", "chats with friends and plans for going out"),
            Folder("Parcels", "tracking and arrival of packages"),
            Folder("Money", "bills, banks and transfers"),
            Folder("Work", "meetings, code reviews and colleagues"),
            Folder("Car", "the car, charging and parking"),
            Folder("Misc", "all that does not fit above"),
        )

        private val PRIORITIES = mapOf(
            5 to "can be ignored",
            4 to "low",
            3 to "normal, this week",
            2 to "needs an answer today",
            1 to "emergency, right now",
        )

        /** What [write] has written; the usual where it has no folder or priority. */
        fun read(text: String): Preferences {
            val lines = fieldsOf(text).groupBy({ it[0] }, { it.drop(1) })
            val folders = lines["folder"].orEmpty().filter { it.size == 2 }.map { Folder(it[0], it[1]) }
            val priorities = lines["priority"].orEmpty().filter { it.size == 2 }.mapNotNull { (level, meaning) ->
                level.toIntOrNull()?.takeIf { it in PRIORITIES }?.let { it to meaning }
            }
            return Preferences(
                folders.ifEmpty { FOLDERS }.take(FOLDERS_MAX),
                PRIORITIES + priorities,
                lines["instructions"]?.firstOrNull()?.firstOrNull().orEmpty(),
            )
        }

        /** A text that a regular expression matches as it is. */
        private fun literal(text: String): String =
            text.map { if (it in "\\.+*?()|[]{}^$") "\\$it" else "$it" }.joinToString("")
    }
}

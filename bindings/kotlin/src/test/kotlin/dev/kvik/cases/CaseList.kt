package dev.kvik.cases

import java.io.File

private val ESCAPES = mapOf('\n' to 'n', '\r' to 'r', '\t' to 't', '"' to '"', '\\' to '\\')
private val LETTERS = ESCAPES.entries.associate { (char, letter) -> letter to char }
private val ARGUMENT = Regex(" (\\w+)=(?:\"((?:[^\"\\\\]|\\\\.)*)\"|([^ \"]*))")

/** A line of `tests/library/cases.txt`, which says what lines are: an operation and its arguments, in their order. */
class Line(text: String) {
    val operation = text.substringBefore(' ')
    val arguments: List<Pair<String, String>> = buildList {
        var at = operation.length
        while (at < text.length) {
            val match = ARGUMENT.matchAt(text, at) ?: error("no argument at `${text.substring(at)}`")
            val (name, quoted, word) = match.groups.drop(1).map { it?.value }
            add(name!! to (quoted?.let(::unescape) ?: word!!))
            at = match.range.last + 1
        }
    }

    fun all(name: String): List<String> = arguments.filter { it.first == name }.map { it.second }

    fun find(name: String): String? = all(name).firstOrNull()

    fun get(name: String): String = find(name) ?: error("`$name` is missing in `$operation`")

    fun number(name: String): Long? = find(name)?.toLong()

    /** Fails where the line says more than this runner does. */
    fun only(known: Set<String>) {
        val unknown = arguments.map { it.first } - known
        check(unknown.isEmpty()) { "arguments that this runner does not know: $unknown" }
    }
}

fun readList(path: String): List<Line> =
    File(path).readText().split("\n").filter { it.isNotEmpty() && !it.startsWith("#") }.map(::Line)

fun quote(text: String): String = text.toCharArray().joinToString("", "\"", "\"") { char ->
    ESCAPES[char]?.let { "\\$it" } ?: char.toString()
}

private fun unescape(quoted: String): String =
    Regex("\\\\(.)").replace(quoted) { LETTERS.getValue(it.groupValues[1].single()).toString() }

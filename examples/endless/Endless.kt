/** Document 002's chat without end on the JVM: one conversation, remembered in several ways, in a process that is killed. */
@file:JvmName("Endless")

package dev.kvik.endless

import kotlinx.coroutines.delay
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import java.io.File
import kotlin.random.Random
import kotlin.system.exitProcess

private const val USAGE = """
    Endless run MODEL SCRIPT DIR KILLS PAUSE_MS MEMORY   says the script, killed so many times, and tells what it came to
    Endless child MODEL SCRIPT DIR PAUSE_MS MEMORY       says the script from the turn on that the conversation is in
    Endless table MODEL SCRIPT DIR PAUSE_MS              says the script once with each MEMORY, in one table

    MEMORY  library  kvik's own: Model.conversation
            own      the app's three parts, summaries by a context of four bits beside the chat's
            chat     the app's three parts, summaries by the chat's context
            window   what fits the context, as without a memory
"""

/** Where each turn is written down, in the directory. */
private const val TURNS = "turns.tsv"

/** A turn of the script; for a question, what the answer has to contain, and how many turns ago that was said. */
private class Turn(val text: String, val value: String?, val distance: Long?)

/** A turn as it came to pass. */
private class Said(
    val turn: Int,
    val distance: Long?,
    val isRight: Boolean,
    val firstMs: Double,
    val promptTokens: Long,
    val computedTokens: Long,
    /** The first of a process. */
    val isFirst: Boolean,
)

fun main(args: Array<String>) = runBlocking {
    when (args.firstOrNull()) {
        "run" -> run(args[1], args[2], File(args[3]), args[4].toInt(), args.drop(5))
        "child" -> child(args[1], script(args[2]), File(args[3]), args[4].toLong(), Memory.of(args[5]))
        "table" -> table(args[1], script(args[2]), File(args[3]), args[4].toLong())
        else -> fail(USAGE.trimEnd())
    }
}

/** Starts the process again each time that it was killed, until it has said everything. */
private fun run(model: String, script: String, dir: File, kills: Int, rest: List<String>) {
    val turns = script(script)
    dir.mkdirs()
    val times = (1..kills).map { it * turns.size / (kills + 1) }
    for (turn in times) killAt(turn, start(model, script, dir, rest))
    val last = start(model, script, dir, rest)
    last.inputStream.bufferedReader().forEachLine { }
    if (last.waitFor() != 0) fail("the last process failed")
    tell(dir.resolve(TURNS).readLines().map(::read), turns.size, kills)
}

private fun start(model: String, script: String, dir: File, rest: List<String>): Process {
    val library = "-Djna.library.path=${System.getProperty("jna.library.path")}"
    val java = File(System.getProperty("java.home"), "bin/java").path
    val command = listOf(java, library, "-cp", System.getProperty("java.class.path"), "dev.kvik.endless.Endless")
    return ProcessBuilder(command + listOf("child", model, script, dir.path) + rest)
        .redirectError(ProcessBuilder.Redirect.INHERIT)
        .start()
}

/** Kills (SIGKILL) in the midst of the turn after this one. */
private fun killAt(turn: Int, process: Process) {
    val said = process.inputStream.bufferedReader()
    while (true) {
        val line = said.readLine() ?: fail("the process ended before it was killed")
        if (line.toInt() >= turn) break
    }
    Thread.sleep(Random(turn).nextLong(60))
    process.destroyForcibly().waitFor()
}

private suspend fun child(model: String, script: List<Turn>, dir: File, pauseMs: Long, memory: Memory) =
    talking(model, dir, memory) { talker ->
        val file = dir.resolve(TURNS)
        val begin = begin(talker, file)
        for (number in begin..script.size) {
            val said = say(talker, number, script[number - 1], isFirst = number == begin)
            file.appendText(write(said))
            println(number)
            delay(pauseMs)
        }
    }

/** The turn that comes next: all that was told to the user is in the conversation, and at most one turn more. */
private suspend fun begin(talker: Talker, file: File): Int {
    val answered = talker.answered()
    val told = if (file.exists()) file.readLines().size else 0
    check(answered in told..told + 1) { "$told turns were told, and the conversation has $answered" }
    // A turn that was written down in the moment of the kill was told to nobody.
    if (answered > told) talker.takeBack(told)
    return told + 1
}

private suspend fun say(talker: Talker, number: Int, turn: Turn, isFirst: Boolean): Said {
    val (text, report) = talker.say(turn.text)
    val isRight = turn.value != null && contains(text, turn.value)
    val firstMs = (report.queued + report.prefill).toNanos() / 1e6
    return Said(number, turn.distance, isRight, firstMs, report.promptTokens, report.computedTokens, isFirst)
}

/** Document 002's comparison, before and after, beside kvik's own memory. */
private suspend fun table(model: String, script: List<Turn>, dir: File, pauseMs: Long) {
    val distances = script.mapNotNull { it.distance }.toSortedSet()
    val asked = distances.joinToString("") { "recalled after $it | " }
    println("| memory | ${asked}first token p50 ms | p99 ms | computed p50 | largest prompt |")
    println("| --- |${" ---: |".repeat(distances.size + 4)}")
    for (memory in Memory.entries) {
        val said = talking(model, dir.resolve(memory.name), memory) { talker ->
            script.mapIndexed { at, turn -> say(talker, at + 1, turn, isFirst = at == 0).also { delay(pauseMs) } }
        }
        val recalled = distances.map { distance -> "${percentRight(said.filter { it.distance == distance })}%" }
        val times = said.map { it.firstMs }.sorted()
        val numbers = listOf(times[times.size / 2], times[times.size * 99 / 100]).map { "%.1f".format(it) }
        val computed = said.map { it.computedTokens }.sorted()[said.size / 2]
        val cells = recalled + numbers + listOf(computed, said.maxOf { it.promptTokens })
        println("| ${memory.name.lowercase()} | ${cells.joinToString(" | ")} |")
    }
}

private fun percentRight(asked: List<Said>): Int = asked.count { it.isRight } * 100 / asked.size

private fun contains(answer: CharSequence, value: String): Boolean =
    Regex("(?<!\\w)${Regex.escape(value)}(?!\\w)", RegexOption.IGNORE_CASE).containsMatchIn(answer)

private fun tell(said: List<Said>, turns: Int, kills: Int) {
    check(said.map { it.turn } == (1..turns).toList()) { "a turn is missing, or there twice" }
    val control = said.filter { it.distance == 1L }
    check(control.count { it.isRight } * 10 >= control.size * 8) { "not even what was said a turn ago is recalled" }
    println("| asked after | facts | recalled |\n| ---: | ---: | ---: |")
    for ((distance, asked) in said.filter { it.distance != null }.groupBy { it.distance!! }.toSortedMap()) {
        println("| $distance | ${asked.size} | ${percentRight(asked)}% |")
    }
    println("\n| turns | count | first token p50 ms | p99 ms | prompt tokens computed p50 |\n| --- | ---: | ---: | ---: | ---: |")
    val (first, others) = said.drop(1).partition { it.isFirst }
    for ((name, kind) in listOf("the first after a kill" to first, "others" to others).filter { it.second.isNotEmpty() }) {
        val times = kind.map { it.firstMs }.sorted()
        val computed = kind.map { it.computedTokens }.sorted()[kind.size / 2]
        println("| $name | ${kind.size} | %.1f | %.1f | $computed |".format(times[times.size / 2], times[times.size * 99 / 100]))
    }
    println("\n$turns turns, $kills kills, none lost; largest prompt ${said.maxOf { it.promptTokens }} tokens")
}

private fun script(path: String): List<Turn> = File(path).readLines().map {
    val line: JsonObject = Json.parseToJsonElement(it).jsonObject
    Turn(
        line.getValue("text").jsonPrimitive.content,
        line["value"]?.jsonPrimitive?.content,
        line["distance"]?.jsonPrimitive?.long,
    )
}

private fun write(said: Said): String = said.run {
    listOf(turn, distance ?: "", isRight, firstMs, promptTokens, computedTokens, isFirst).joinToString("\t", postfix = "\n")
}

private fun read(line: String): Said = line.split("\t").let {
    Said(it[0].toInt(), it[1].toLongOrNull(), it[2].toBoolean(), it[3].toDouble(), it[4].toLong(), it[5].toLong(), it[6].toBoolean())
}

private fun fail(message: String): Nothing {
    System.err.println(message)
    exitProcess(2)
}

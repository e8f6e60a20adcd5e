/** Document 000's classifier on the JVM: what a cached system prompt saves, and that it is there after a kill. */
@file:JvmName("Notifications")

package dev.kvik.notifications

import dev.kvik.MemoryPressure
import dev.kvik.Message
import dev.kvik.Model
import dev.kvik.ModelOptions
import dev.kvik.Report
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.buildJsonArray
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.addJsonObject
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.put
import java.io.File
import java.nio.file.Files
import kotlin.system.exitProcess

private const val USAGE = """
    Notifications table MODEL NOTIFICATIONS COUNT    the table of document 000, with and without the cache
    Notifications speed MODEL NOTIFICATIONS COUNT    what answers took, whole and as flows, beside Rust's `ask`
    Notifications requests NOTIFICATIONS COUNT       the requests, a line each, for Rust's `ask`
    Notifications child MODEL NOTIFICATIONS DIR      classifies without end, until it is killed
"""

/** An answer's times as its reader sees them, in milliseconds, and its report. */
private class Timed(val firstMs: Double, val totalMs: Double, val report: Report)

fun main(args: Array<String>) = runBlocking {
    when (args.firstOrNull()) {
        "table" -> table(args[1], notifications(args[2], args[3].toInt()))
        "speed" -> speed(args[1], notifications(args[2], args[3].toInt()))
        "requests" -> requests(notifications(args[1], args[2].toInt()))
        "child" -> child(args[1], notifications(args[2], Int.MAX_VALUE), File(args[3]))
        else -> fail(USAGE.trimEnd())
    }
}

/** The table, and the app killed and opened again. */
private suspend fun table(path: String, notifications: List<Notification>) {
    val dir = Files.createTempDirectory("kvik-notifications").toFile()
    try {
        val without = Model.open(path, options(null)).use { model -> cold(model, notifications) }
        val with = Model.open(path, options(dir)).use { model -> warm(model, notifications) }
        dir.deleteRecursively()
        val killed = killed(path, notifications, dir)
        println("| ${notifications.size} notifications | without | with | after a kill |")
        println("| --- | --- | --- | --- |")
        row("system prompt computed", "each time", "once", if (killed.wasValid) "no" else "again")
        row("prefill tokens", listOf(without, with, listOf(killed.first)), 0) { it.report.computedTokens.toDouble() }
        row("first token, ms", listOf(without, with, listOf(killed.first)), 2) { it.firstMs }
        row("whole answer, ms", listOf(without, with, listOf(killed.first)), 2) { it.totalMs }
        row("all answers, s", listOf(without, with).map { it.sumOf(Timed::totalMs) / 1000 }.map { "%.2f".format(it) })
        check(killed.wasValid) { "the kept prompt did not outlive the process" }
        check(with.all { it.report.computedTokens < it.report.promptTokens / 2 }) { "the kept prompt was computed again" }
    } finally {
        dir.deleteRecursively()
    }
}

/** Nothing is cached: all is evicted before each answer. */
private suspend fun cold(model: Model, notifications: List<Notification>): List<Timed> {
    val classifier = Classifier(model, Preferences())
    return notifications.map {
        model.onMemoryPressure(MemoryPressure.CRITICAL)
        timed(model, classifier.messages(it))
    }
}

/** The system prompt is kept. */
private suspend fun warm(model: Model, notifications: List<Notification>): List<Timed> {
    val classifier = Classifier(model, Preferences()).apply { prepare() }
    return notifications.map { timed(model, classifier.messages(it)) }
}

/** What the next process finds: whether the prompt was valid, and its first answer. */
private class Killed(val wasValid: Boolean, val first: Timed)

/** Classifies in another process, which is killed (SIGKILL) while it does, and goes on in this one. */
private suspend fun killed(path: String, notifications: List<Notification>, dir: File): Killed {
    val file = File.createTempFile("kvik-notifications", ".jsonl")
    try {
        file.writeText(notifications.joinToString("\n") { "${it.app}\t${it.title}\t${it.body}" })
        val process = ProcessBuilder(java("child", path, file.path, dir.path)).redirectErrorStream(true).start()
        val lines = process.inputStream.bufferedReader()
        repeat(3) { lines.readLine() ?: fail("the other process ended before it was killed") }
        process.destroyForcibly().waitFor()
        return Model.open(path, options(dir)).use { model ->
            val wasValid = model.isValid(Classifier.NAME, PromptBuilder(Preferences()).systemPrompt(), Classifier.OPTIONS)
            Killed(wasValid, warm(model, notifications.takeLast(1)).single())
        }
    } finally {
        file.delete()
    }
}

private suspend fun child(path: String, notifications: List<Notification>, dir: File) {
    val model = Model.open(path, options(dir))
    val classifier = Classifier(model, Preferences()).apply { prepare() }
    // As an app that goes to the background, and is killed some time later.
    model.onBackground()
    while (true) {
        for (notification in notifications) {
            println(classifier.classify(notification).sorted)
        }
    }
}

/** This program again. */
private fun java(vararg args: String): List<String> {
    val library = "-Djna.library.path=${System.getProperty("jna.library.path")}"
    val java = File(System.getProperty("java.home"), "bin/java").path
    return listOf(java, library, "-cp", System.getProperty("java.class.path"), "dev.kvik.notifications.Notifications", *args)
}

/** All notifications in both ways, and again: times of the last round, when the machine's compiler has come to rest. */
private suspend fun speed(path: String, notifications: List<Notification>) {
    Model.open(path, options(null)).use { model ->
        val classifier = Classifier(model, Preferences()).apply { prepare() }
        val ways = listOf("whole" to ::whole, "flow" to ::timed)
        repeat(5) { round ->
            for ((name, ask) in ways) {
                val answers = notifications.map { ask(model, classifier.messages(it)) }
                if (round == 4) tell(name, answers)
            }
        }
    }
}

private fun tell(name: String, answers: List<Timed>) {
    val tokens = answers.sumOf { it.report.generatedTokens }
    val totalMs = answers.sumOf { it.totalMs }
    val engineMs = answers.sumOf { it.report.run { (queued + prefill + decode).toNanos() / 1e6 } }
    val firstMs = median(answers.map { it.firstMs })
    println(
        "$name tokens $tokens first_ms %.3f total_ms %.1f us_a_token %.2f beside_the_engine_us_a_token %.2f"
            .format(firstMs, totalMs, totalMs * 1000 / tokens, (totalMs - engineMs) * 1000 / tokens),
    )
}

/** An answer that nobody watches, as the classifier's. */
private suspend fun whole(model: Model, messages: List<Message>): Timed {
    val from = System.nanoTime()
    val report = model.answer(messages, Classifier.OPTIONS).report
    val totalMs = (System.nanoTime() - from) / 1e6
    return Timed(totalMs, totalMs, report)
}

private suspend fun timed(model: Model, messages: List<Message>): Timed {
    val from = System.nanoTime()
    var first = 0L
    lateinit var report: Report
    model.chat(messages, Classifier.OPTIONS, onReport = { report = it }).collect {
        if (first == 0L) first = System.nanoTime()
    }
    val end = System.nanoTime()
    return Timed((first - from) / 1e6, (end - from) / 1e6, report)
}

/** What Rust's `ask` reads: the same requests. */
private fun requests(notifications: List<Notification>) {
    val prompts = PromptBuilder(Preferences())
    for (notification in notifications) {
        val messages = listOf("system" to prompts.systemPrompt(), "user" to prompts.userMessage(notification))
        val line = buildJsonArray {
            messages.forEach { (role, content) ->
                addJsonObject {
                    put("role", role)
                    put("content", content)
                }
            }
        }
        println(buildJsonObject { put("messages", line) })
    }
}

private fun options(dir: File?) = ModelOptions(kvBytes = 64L shl 20, parallel = 1, diskDir = dir?.path)

/** Notifications of a file: lines of JSON whose last message is one, as `models/tiny/eval-notify.jsonl`, or of tabs. */
private fun notifications(path: String, count: Int): List<Notification> =
    File(path).useLines { lines -> lines.take(count).map { if (it.startsWith("{")) ofJson(it) else ofTabs(it) }.toList() }

private fun ofTabs(line: String): Notification = line.split("\t").let { (app, title, body) -> Notification(app, title, body) }

private fun ofJson(line: String): Notification {
    val content = Json.parseToJsonElement(line).jsonObject.getValue("messages").jsonArray.last().jsonObject.getValue("content")
    val fields = content.jsonPrimitive.content.lines().associate { it.substringBefore(": ") to it.substringAfter(": ") }
    return Notification(fields.getValue("App"), fields.getValue("Title"), fields.getValue("Body"))
}

private fun row(name: String, runs: List<List<Timed>>, digits: Int, number: (Timed) -> Double) =
    row(name, runs.map { run -> "%.${digits}f".format(median(run.map(number))) })

private fun row(name: String, vararg cells: String) = row(name, cells.toList())

private fun row(name: String, cells: List<String>) = println("| $name | ${(cells + "").take(3).joinToString(" | ")} |")

private fun median(numbers: List<Double>): Double = numbers.sorted()[numbers.size / 2]

private fun fail(message: String): Nothing {
    System.err.println(message)
    exitProcess(2)
}

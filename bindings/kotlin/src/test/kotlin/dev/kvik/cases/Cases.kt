/** Does what the list of cases says, and writes what came of it: `Cases LIST MODEL EMPTY_DIRECTORY`. */
@file:JvmName("Cases")

package dev.kvik.cases

import dev.kvik.AnswerHandle
import dev.kvik.AnswerOptions
import dev.kvik.Constraint
import dev.kvik.KeptState
import dev.kvik.KvikException
import dev.kvik.MemoryPressure
import dev.kvik.Message
import dev.kvik.Model
import dev.kvik.ModelOptions
import dev.kvik.ModelSampling
import dev.kvik.Piece
import dev.kvik.Prompt
import dev.kvik.RealSetting
import dev.kvik.Role
import dev.kvik.text
import kotlinx.coroutines.runBlocking
import java.io.File
import java.io.PrintStream
import java.io.RandomAccessFile
import java.util.Locale

/** What cases may need that Kotlin has. */
private val HAS = setOf("forms", "conversations")
private val CONVERSATIONS =
    setOf("messages", "conversations", "remembered", "correct", "take_back", "rename", "delete")
private val ROLES = setOf("system", "user", "assistant")
private val OPEN = setOf("as", "file", "disk", "conversations", "kv_bytes", "context_tokens", "threads", "parallel")
private val ASKED = ROLES + setOf("prompt", "times", "conversation", "counts", "cancel_after")
private val FORMS = setOf("tools", "tool_choice", "json_schema", "regex", "grammar")
private val ANSWER = ASKED + FORMS +
    setOf("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "retention")

fun main(args: Array<String>) {
    val (list, file, directory) = args
    val out = PrintStream(System.out, true, Charsets.UTF_8)
    val runner = Runner(file, File(directory))
    var skips = false
    for (line in readList(list)) {
        if (line.operation == "case") {
            skips = line.find("needs") !in HAS + null
            out.print("case name=${quote(line.get("name"))}${if (skips) " skipped=yes" else ""}\n")
        } else if (!skips) {
            out.print("${line.operation} ${runner.run(line)}".trimEnd(' ') + "\n")
        }
    }
}

private class Runner(private val file: String, private val directory: File) {
    /** The last one that was opened, so that the calls after it was closed are those of a closed model. */
    private var opened: Model? = null
    private val model get() = opened ?: throw KvikException.Closed("no model is open")

    fun run(line: Line): String = try {
        runBlocking { outcome(line) }
    } catch (failure: KvikException) {
        "error=${kind(failure)}"
    }

    private suspend fun outcome(line: Line): String = when (line.operation) {
        "open" -> open(line)
        "close" -> "ok=yes".also { opened?.close() }
        "generate" -> answered(line) { model.ask(prompt(line), it) }
        "chat" -> answered(line) { model.ask(messages(line), it) }
        "say" -> answered(line) { conversation(line).ask(messages(line).messages, it) }
        in CONVERSATIONS -> converse(line)
        "count_tokens" -> "tokens=${model.countTokens(prompt(line))}"
        "explain" -> model.explain(prompt(line)).run {
            "prompt=$promptTokens known=$knownTokens reason=${reason.name.lowercase()}"
        }
        "embed" -> embed(line)
        "keep" -> kept(model.keep(line.get("id"), messages(line)))
        "is_kept" -> kept(model.kept(line.get("id"), messages(line)))
        "keep_copies" -> keepCopies(line)
        "forget" -> "known=${yes(model.invalidate(line.get("id")))}"
        "memory_pressure" -> "ok=yes".also {
            model.onMemoryPressure(MemoryPressure.valueOf(line.get("level").uppercase()))
        }
        "background" -> "ok=yes".also { model.onBackground() }
        "stats" -> model.stats.run {
            "running=$running waiting=$waiting prompt=$promptTokens cached=$cachedTokens generated=$generatedTokens"
        }
        "sampling" -> sampling(model.sampling())
        else -> error("an operation that this runner does not know: ${line.operation}")
    }

    private suspend fun converse(line: Line): String = when (line.operation) {
        "messages" -> conversation(line).messages().joinToString(" ") { "${it.role.name.lowercase()}=${quote(it.content)}" }
        "conversations" -> model.conversations.joinToString(" ") { "name=${quote(it.name.orEmpty())} messages=${it.messages}" }
        "remembered" -> "summary=${quote(conversation(line).remembered()?.summary.orEmpty())}"
        "correct" -> "ok=yes".also { conversation(line).correct(line.get("summary")) }
        "take_back" -> "ok=yes".also { conversation(line).takeBack(line.get("from").toLong()) }
        "rename" -> "ok=yes".also { conversation(line).rename(line.get("name")) }
        else -> "ok=yes".also { conversation(line).delete() }
    }

    private fun conversation(line: Line) = model.conversation(line.get("conversation"))

    private suspend fun open(line: Line): String {
        line.only(OPEN)
        val path = line.find("file") ?: file
        val options = ModelOptions(
            kvBytes = line.number("kv_bytes"),
            contextTokens = line.number("context_tokens"),
            threads = line.number("threads"),
            parallel = line.number("parallel"),
            diskDir = line.find("disk")?.let { directory.resolve(it).path },
            conversationsDir = line.find("conversations")?.let { directory.resolve(it).path },
        )
        opened = when (val source = line.get("as")) {
            "path" -> Model.open(path, options)
            "bytes" -> Model.open(File(path).readBytes(), options)
            "part" -> RandomAccessFile(path, "r").use { Model.open(descriptor(path), 0, options = options) }
            else -> error("a source that this runner does not know: $source")
        }
        return "ok=yes"
    }

    private fun answered(line: Line, ask: (AnswerOptions) -> AnswerHandle): String {
        line.only(ANSWER)
        return ask(options(line)).use { answered(line, it) }
    }

    private suspend fun embed(line: Line): String {
        val numbers = model.embed(line.get("input"))
        val bits = numbers.joinToString("") { "%08x".format(it.toRawBits()) }
        return "dimensions=${numbers.size} bits=$bits"
    }

    private suspend fun keepCopies(line: Line): String {
        val copies = line.get("copies").toInt()
        for (i in 0 until copies) {
            try {
                model.keep(line.get("id") + i, messages(line))
            } catch (failure: KvikException) {
                return "kept=$i error=${kind(failure)}"
            }
        }
        return "kept=$copies"
    }
}

private fun answered(line: Line, answer: AnswerHandle): String {
    val pieces = mutableListOf<Piece>()
    val cancelAfter = line.number("cancel_after") ?: 0
    while (true) {
        val batch = answer.next().ifEmpty { break }
        pieces += batch
        if (cancelAfter > 0 && pieces.size >= cancelAfter) answer.cancel()
    }
    val report = checkNotNull(answer.report())
    val finish = "finish=${report.finish.name.lowercase()} prompt=${report.promptTokens}"
    if (cancelAfter > 0) return finish
    val (reasoning, text) = pieces.partition { it is Piece.Reasoning }.toList().map { part -> part.joinToString("") { it.text } }
    val thought = if (reasoning.isEmpty()) "" else " reasoning=${quote(reasoning)}"
    val calls = pieces.filterIsInstance<Piece.Call>().joinToString("") { (call) ->
        " call=${quote(call.name)} arguments=${quote(call.arguments)}"
    }
    val said = "text=${quote(text)}$thought$calls $finish"
    val generated = "generated=${report.generatedTokens}"
    if (line.find("counts") == "no") return "$said $generated"
    val reason = report.reason?.name.orEmpty().lowercase()
    return "$said cached=${report.cachedTokens} computed=${report.computedTokens} $generated reason=$reason"
}

private fun options(line: Line) = AnswerOptions(
    maxTokens = line.number("max_tokens"),
    minTokens = line.number("min_tokens") ?: 0,
    stop = line.all("stop"),
    temperature = line.find("temperature")?.toDouble(),
    topP = line.find("top_p")?.toDouble(),
    topK = line.number("top_k"),
    minP = line.find("min_p")?.toDouble(),
    // A seed is any 64 bits.
    seed = line.find("seed")?.toULong()?.toLong(),
    tools = line.find("tools"),
    toolChoice = line.find("tool_choice"),
    constraint = line.find("json_schema")?.let { Constraint.JsonSchema(it) }
        ?: line.find("regex")?.let { Constraint.Regex(it) }
        ?: line.find("grammar")?.let { Constraint.Lark(it) },
    retention = line.find("retention"),
)

private fun sampling(now: ModelSampling): String = now.run {
    listOf(
        real("temperature", temperature),
        "top_k=${topK.value} from=${quote(topK.source)}",
        real("top_p", topP),
        real("min_p", minP),
        real("repetition_penalty", repetitionPenalty),
        real("presence_penalty", presencePenalty),
        real("frequency_penalty", frequencyPenalty),
        "penalty_last_n=${penaltyLastN.value} from=${quote(penaltyLastN.source)}",
    ).joinToString(" ")
}

private fun real(name: String, setting: RealSetting) =
    "$name=${"%.2f".format(Locale.ROOT, setting.value)} from=${quote(setting.source)}"

private fun prompt(line: Line): Prompt = Prompt.Text(line.get("prompt").repeat((line.number("times") ?: 1).toInt()))

private fun messages(line: Line): Prompt.Messages =
    Prompt.Messages(line.arguments.filter { it.first in ROLES }.map { (role, said) -> Message(Role.valueOf(role.uppercase()), said) })

private fun kept(state: KeptState): String = when (state) {
    is KeptState.Unknown -> "state=unknown"
    is KeptState.Changed -> "state=changed"
    is KeptState.Kept -> "state=kept warm=${yes(state.warm)} tokens=${state.tokens}"
}

private fun kind(failure: KvikException): String = when (failure) {
    is KvikException.Closed -> "closed"
    is KvikException.InvalidArgument -> "argument"
    is KvikException.Model, is KvikException.NoTemplate -> "model"
    is KvikException.Memory -> "memory"
    is KvikException.Disk -> "disk"
    is KvikException.PromptTooLong, is KvikException.OverBudget, is KvikException.TooManyKept,
    is KvikException.Busy, is KvikException.Request, is KvikException.Conversation,
    -> "request"
    is KvikException.Internal -> "internal"
}

private fun yes(isSo: Boolean) = if (isSo) "yes" else "no"

/** The number of an open file, which Java does not tell. */
private fun descriptor(path: String): Int =
    File("/proc/self/fd").listFiles().orEmpty().first { it.canonicalFile == File(path).canonicalFile }.name.toInt()

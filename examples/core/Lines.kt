/** Files of fields, for both apps: what was written whole is read, also after a kill. */
package dev.kvik.examples

import java.io.File
import java.io.FileOutputStream
import java.io.RandomAccessFile
import java.nio.file.Files
import java.nio.file.StandardCopyOption

/** What a line ends with that was written whole: no field has a tab. */
private const val WHOLE = "\t."

/** Fields of any text as one line, with tabs between them. */
fun line(vararg fields: Any?): String = fields.joinToString("\t", postfix = "$WHOLE\n") { escaped("${it ?: ""}") }

/** The fields of each line of a file, but for lines that a kill has cut off. */
fun readLines(file: File): List<List<String>> =
    if (file.exists()) fieldsOf(file.readText()) else emptyList()

/** The fields of each whole line of a text. */
fun fieldsOf(text: String): List<List<String>> =
    text.split('\n').filter { it.endsWith(WHOLE) }.map { it.removeSuffix(WHOLE).split('\t').map(::unescaped) }

/** Adds a line, durably, on a line of its own where the one before was cut off. */
fun append(file: File, line: String) {
    file.parentFile?.mkdirs()
    val isCut = endsWithin(file)
    FileOutputStream(file, true).use {
        it.write((if (isCut) "\n$line" else line).toByteArray())
        it.fd.sync()
    }
}

/** Replaces a file as a whole: after a kill it is the old one or the new one. */
fun replace(file: File, text: String) {
    file.parentFile?.mkdirs()
    val beside = File(file.path + ".new")
    FileOutputStream(beside).use {
        it.write(text.toByteArray())
        it.fd.sync()
    }
    Files.move(beside.toPath(), file.toPath(), StandardCopyOption.REPLACE_EXISTING, StandardCopyOption.ATOMIC_MOVE)
}

private fun endsWithin(file: File): Boolean {
    if (file.length() == 0L) return false
    return RandomAccessFile(file, "r").use {
        it.seek(it.length() - 1)
        it.read() != '\n'.code
    }
}

private fun escaped(text: String): String = buildString {
    for (c in text) {
        when (c) {
            '\\' -> append("\\\\")
            '\t' -> append("\\t")
            '\n' -> append("\\n")
            else -> append(c)
        }
    }
}

private fun unescaped(text: String): String = buildString {
    var at = 0
    while (at < text.length) {
        val isEscape = text[at] == '\\' && at + 1 < text.length
        append(if (isEscape) plain(text[at + 1]) else text[at])
        at += if (isEscape) 2 else 1
    }
}

private fun plain(escape: Char): Char = when (escape) {
    't' -> '\t'
    'n' -> '\n'
    else -> escape
}

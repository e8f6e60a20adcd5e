/** Texts that are cut, for both apps: half of a surrogate pair is no text, and kvik refuses it. */
package dev.kvik.examples

/** The beginning of a text: at most so many chars, and no half of a pair at their end. */
fun beginning(text: String, charsMax: Int): String {
    val cut = text.take(charsMax)
    return if (cut.length < text.length && cut.lastOrNull()?.isHighSurrogate() == true) cut.dropLast(1) else cut
}

/** The end of a text: at most so many chars, and no half of a pair at their beginning. */
fun ending(text: String, charsMax: Int): String {
    val cut = text.takeLast(charsMax)
    return if (cut.length < text.length && cut.firstOrNull()?.isLowSurrogate() == true) cut.drop(1) else cut
}

/** A text with a question mark for each half of a pair: another program may have cut it anywhere. */
fun withoutHalves(text: String): String = String(text.toByteArray())

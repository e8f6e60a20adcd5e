package dev.kvik.endless

import android.content.Context
import android.widget.Toast
import dev.kvik.KvikException
import kotlinx.coroutines.CoroutineExceptionHandler
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import java.io.IOException

/** Shows a text for a moment, also to those who have it read to them. */
fun Context.tell(text: CharSequence) = Toast.makeText(this, text, Toast.LENGTH_LONG).show()

/** What a screen does. A file that cannot be read or written is told to the user, and does not end the app. */
fun Context.screenScope(): CoroutineScope {
    val telling = CoroutineExceptionHandler { _, failure ->
        if (failure !is IOException && failure !is KvikException) throw failure
        tell(failure.message ?: failure.toString())
    }
    return CoroutineScope(SupervisorJob() + Dispatchers.Main + telling)
}

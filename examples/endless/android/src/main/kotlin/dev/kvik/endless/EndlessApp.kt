package dev.kvik.endless

import android.app.Application
import android.content.Context
import android.content.ComponentCallbacks2
import android.net.Uri
import dev.kvik.Model
import dev.kvik.appOptions
import dev.kvik.callbacks
import dev.kvik.openAsset
import dev.kvik.openDocument
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.launch
import java.io.File

/** The process: its conversations and models live as long as it does, whichever screen is seen. */
class EndlessApp : Application() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)

    lateinit var chats: Chats
        private set

    override fun onCreate() {
        super.onCreate()
        // Nothing is read or opened here: the first screen asks for it, behind.
        chats = Chats(File(filesDir, "conversations"), scope) { settings, purpose -> open(settings, purpose) }
        registerComponentCallbacks(chats.chat.callbacks())
        registerComponentCallbacks(chats.summaries.callbacks())
    }

    @Suppress("OVERRIDE_DEPRECATION") // Android deprecates levels of it, and still calls it.
    override fun onTrimMemory(level: Int) {
        super.onTrimMemory(level)
        // An app that is not seen is frozen and perhaps killed: answers end here, and their questions are drafts again.
        if (level == ComponentCallbacks2.TRIM_MEMORY_UI_HIDDEN) scope.launch { chats.onHidden() }
    }

    private suspend fun open(settings: Settings, purpose: Purpose): Model {
        val options = optionsFor(purpose, appOptions(this))
        val chosen = settings.model ?: return Model.openAsset(this, EMBEDDED, options)
        return Model.openDocument(this, Uri.parse(chosen), options)
    }

    private companion object {
        const val EMBEDDED = "kvik-tiny-q8_0.gguf"
    }
}

val Context.chats: Chats get() = (applicationContext as EndlessApp).chats

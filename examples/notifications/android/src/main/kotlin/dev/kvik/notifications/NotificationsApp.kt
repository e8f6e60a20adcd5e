package dev.kvik.notifications

import android.app.Application
import android.content.Context
import android.net.Uri
import dev.kvik.Model
import dev.kvik.appOptions
import dev.kvik.callbacks
import dev.kvik.openAsset
import dev.kvik.openDocument
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob

/** The process: its sorter lives as long as it does, whether the screen or the system's listener has started it. */
class NotificationsApp : Application() {
    lateinit var sorter: Sorter
        private set

    override fun onCreate() {
        super.onCreate()
        // Nothing is read or opened here: the sorter does that behind.
        sorter = Sorter(filesDir, { open(it) }, CoroutineScope(SupervisorJob() + Dispatchers.Default))
        registerComponentCallbacks(sorter.shared.callbacks())
    }

    private suspend fun open(settings: Settings): Model {
        // One notification after the other; half of the time, so that the phone stays cool.
        val options = appOptions(this).copy(parallel = 1, kvBytes = KV_BYTES, timeShare = 0.5)
        val chosen = settings.model ?: return Model.openAsset(this, EMBEDDED, options)
        return Model.openDocument(this, Uri.parse(chosen), options)
    }

    private companion object {
        const val EMBEDDED = "kvik-tiny-q8_0.gguf"

        /** 1,100 tokens of Qwen3-0.6B in f16, which has 112 KiB a token: a long prompt twice. */
        const val KV_BYTES = 128L shl 20
    }
}

val Context.sorter: Sorter get() = (applicationContext as NotificationsApp).sorter

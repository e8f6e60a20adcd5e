package dev.kvik.notifications

import android.content.Context
import dev.kvik.Model
import dev.kvik.memoryPressure
import dev.kvik.openAsset
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock

/** The process's one model: the activity and the service that listens for notifications share it. */
object Sorter {
    private val opening = Mutex()
    private var model: Model? = null
    private var classifier: Classifier? = null

    private val folders = mapOf(
        "Health" to "doctor, pharmacy and test results",
        "Travel" to "boarding passes, hotels and holidays",
        "Friends" to "chats with friends and plans for going out",
        "Parcels" to "tracking and arrival of packages",
        "Misc" to "all that does not fit above",
    )

    /** The classifier, whose system prompt is computed: the first time ever by the model, after that from the disk. */
    suspend fun classifier(context: Context): Classifier = opening.withLock {
        classifier ?: run {
            val opened = Model.openAsset(context.applicationContext, "kvik-tiny-q8_0.gguf")
            model = opened
            Classifier(opened, folders).also {
                it.prepare()
                classifier = it
            }
        }
    }

    /** The system is about to kill the process, perhaps. */
    fun onStop() {
        model?.onBackground()
    }

    /** The system wants memory back. */
    fun onTrimMemory(level: Int) {
        memoryPressure(level)?.let { model?.onMemoryPressure(it) }
    }
}

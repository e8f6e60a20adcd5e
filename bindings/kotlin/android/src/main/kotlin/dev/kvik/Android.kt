package dev.kvik

import android.content.ComponentCallbacks2
import android.content.Context
import android.content.Intent
import android.content.res.Configuration
import android.net.Uri
import java.io.File
import java.io.FileNotFoundException

/** The options of an app: what is computed outlives the process in the app's cache directory, which is never backed up. */
fun appOptions(context: Context) = ModelOptions(diskDir = File(context.cacheDir, "kvik").path)

/**
 * Opens a model among the app's assets, which is mapped in place. Computed blocks outlive the process in the app's cache
 * directory.
 */
suspend fun Model.Companion.openAsset(
    context: Context,
    name: String,
    options: ModelOptions = appOptions(context),
): Model = context.assets.openFd(name).use { asset ->
    open(asset.parcelFileDescriptor.fd, asset.startOffset, asset.length, options)
}

/**
 * Opens a model that the user chose with the system's picker, where it lies: nothing is copied, and no permission asked.
 *
 * @throws FileNotFoundException where the file is gone, or may no longer be read: what names it may be backed up, and the
 * permission to read it is not.
 */
suspend fun Model.Companion.openDocument(
    context: Context,
    uri: Uri,
    options: ModelOptions = appOptions(context),
): Model {
    val file = try {
        context.contentResolver.openFileDescriptor(uri, "r")
    } catch (denied: SecurityException) {
        throw FileNotFoundException("$uri may no longer be read: choose the model again")
    }
    return (file ?: throw FileNotFoundException("$uri")).use { open(it.fd, 0, options = options) }
}

/** Keeps a document that the user chose readable after a restart; false where what provides it does not allow that. */
fun Context.keepReadable(uri: Uri): Boolean = try {
    contentResolver.takePersistableUriPermission(uri, Intent.FLAG_GRANT_READ_URI_PERMISSION)
    true
} catch (refused: SecurityException) {
    false
}

/** Tells the model what the system tells the app: for `Application.registerComponentCallbacks`. */
fun SharedModel.callbacks(): ComponentCallbacks2 = object : ComponentCallbacks2 {
    @Suppress("OVERRIDE_DEPRECATION") // Android deprecates levels of it, and still calls it.
    override fun onTrimMemory(level: Int) {
        if (level == ComponentCallbacks2.TRIM_MEMORY_UI_HIDDEN) onBackground()
        memoryPressure(level)?.let { onMemoryPressure(it) }
    }

    @Deprecated("Android calls onTrimMemory instead.")
    override fun onLowMemory() = Unit

    override fun onConfigurationChanged(configuration: Configuration) = Unit
}

/** The level of Android's `onTrimMemory`; null if it requests nothing. */
fun memoryPressure(level: Int): MemoryPressure? = when {
    level == ComponentCallbacks2.TRIM_MEMORY_UI_HIDDEN -> null
    level >= ComponentCallbacks2.TRIM_MEMORY_COMPLETE -> MemoryPressure.CRITICAL
    level >= ComponentCallbacks2.TRIM_MEMORY_MODERATE -> MemoryPressure.HIGH
    level >= ComponentCallbacks2.TRIM_MEMORY_BACKGROUND -> MemoryPressure.MODERATE
    level == ComponentCallbacks2.TRIM_MEMORY_RUNNING_CRITICAL -> MemoryPressure.CRITICAL
    level == ComponentCallbacks2.TRIM_MEMORY_RUNNING_LOW -> MemoryPressure.HIGH
    level == ComponentCallbacks2.TRIM_MEMORY_RUNNING_MODERATE -> MemoryPressure.MODERATE
    else -> null
}

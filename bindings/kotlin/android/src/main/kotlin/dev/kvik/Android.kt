package dev.kvik

import android.content.ComponentCallbacks2
import android.content.Context
import java.io.File

/**
 * Opens a model among the app's assets, which is mapped where it lies. What is computed outlives the process in the app's
 * cache directory.
 */
suspend fun Model.Companion.openAsset(
    context: Context,
    name: String,
    options: ModelOptions = ModelOptions(diskDir = File(context.cacheDir, "kvik").path),
): Model = context.assets.openFd(name).use { asset ->
    open(asset.parcelFileDescriptor.fd, asset.startOffset, asset.length, options)
}

/** What Android's `onTrimMemory` asks for; none where it asks for nothing. */
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

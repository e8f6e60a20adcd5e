package dev.kvik.notifications

import android.service.notification.NotificationListenerService
import android.service.notification.StatusBarNotification
import android.util.Log
import dev.kvik.KvikException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch

/** Sorts each notification as it is posted. */
class NotificationService : NotificationListenerService() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)

    override fun onNotificationPosted(posted: StatusBarNotification) {
        val extras = posted.notification.extras
        val text = { key: String -> extras.getCharSequence(key)?.toString().orEmpty() }
        val notification = Notification(posted.packageName, text("android.title"), text("android.text"))
        scope.launch {
            try {
                val sorted = Sorter.classifier(this@NotificationService).classify(notification).sorted
                Log.i("kvik", "${notification.title}: $sorted")
            } catch (failure: KvikException) {
                Log.w("kvik", failure)
            }
        }
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }
}

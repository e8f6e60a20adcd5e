package dev.kvik.notifications

import android.app.Notification.EXTRA_BIG_TEXT
import android.app.Notification.EXTRA_TEXT
import android.app.Notification.EXTRA_TITLE
import android.app.Notification.FLAG_FOREGROUND_SERVICE
import android.app.Notification.FLAG_GROUP_SUMMARY
import android.app.Notification.FLAG_ONGOING_EVENT
import android.content.pm.PackageManager.NameNotFoundException
import android.service.notification.NotificationListenerService
import android.service.notification.StatusBarNotification

/**
 * Hands each notification to the process's sorter, at once: the system calls it on the main thread. It is bound by the
 * system as long as the user allows it, which keeps the process alive; a foreground service is not needed.
 */
class NotificationService : NotificationListenerService() {
    override fun onNotificationPosted(posted: StatusBarNotification) {
        if (isForPeople(posted)) read(posted)?.let { sorter.offer(Posted(posted.key, posted.postTime, it)) }
    }

    /** Downloads, players and summaries of groups are posted again and again, and say nothing to sort. */
    private fun isForPeople(posted: StatusBarNotification): Boolean {
        val silent = FLAG_ONGOING_EVENT or FLAG_GROUP_SUMMARY or FLAG_FOREGROUND_SERVICE
        return posted.packageName != packageName && posted.notification.flags and silent == 0
    }

    private fun read(posted: StatusBarNotification): Notification? {
        val extras = posted.notification.extras
        val text = { key: String -> extras.getCharSequence(key)?.toString().orEmpty() }
        val body = text(EXTRA_BIG_TEXT).ifEmpty { text(EXTRA_TEXT) }
        val title = text(EXTRA_TITLE)
        return if (title.isEmpty() && body.isEmpty()) null else Notification(nameOf(posted.packageName), title, body)
    }

    /** The app's name as the user knows it; that of its package where the system does not show it to us. */
    private fun nameOf(app: String): String = try {
        packageManager.getApplicationLabel(packageManager.getApplicationInfo(app, 0)).toString()
    } catch (missing: NameNotFoundException) {
        app
    }
}

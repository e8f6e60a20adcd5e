package android.service.notification;

import android.app.Service;

public abstract class NotificationListenerService extends Service {
    public void onNotificationPosted(StatusBarNotification posted) { throw new RuntimeException("stub"); }
}

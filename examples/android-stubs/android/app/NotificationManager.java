package android.app;

import android.content.ComponentName;

public class NotificationManager {
    public boolean isNotificationListenerAccessGranted(ComponentName listener) { throw new RuntimeException("stub"); }
}

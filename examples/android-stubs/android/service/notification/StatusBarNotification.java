package android.service.notification;

import android.app.Notification;

public class StatusBarNotification {
    public String getKey() { throw new RuntimeException("stub"); }
    public Notification getNotification() { throw new RuntimeException("stub"); }
    public String getPackageName() { throw new RuntimeException("stub"); }
    public long getPostTime() { throw new RuntimeException("stub"); }
}

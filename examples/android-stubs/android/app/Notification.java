package android.app;

import android.os.Bundle;

public class Notification {
    public static final String EXTRA_BIG_TEXT = "android.bigText";
    public static final String EXTRA_TEXT = "android.text";
    public static final String EXTRA_TITLE = "android.title";
    public static final int FLAG_FOREGROUND_SERVICE = 0x40;
    public static final int FLAG_GROUP_SUMMARY = 0x200;
    public static final int FLAG_ONGOING_EVENT = 0x2;
    public Bundle extras;
    public int flags;
}

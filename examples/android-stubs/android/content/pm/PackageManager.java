package android.content.pm;

public abstract class PackageManager {
    public abstract ApplicationInfo getApplicationInfo(String app, int flags) throws NameNotFoundException;
    public abstract CharSequence getApplicationLabel(ApplicationInfo app);
    public static class NameNotFoundException extends Exception {
    }
}

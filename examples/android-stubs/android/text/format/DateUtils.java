package android.text.format;

public class DateUtils {
    public static CharSequence getRelativeTimeSpanString(long ms) { throw new RuntimeException("stub"); }
}

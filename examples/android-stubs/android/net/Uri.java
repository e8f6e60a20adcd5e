package android.net;

public abstract class Uri {
    public static Uri parse(String uri) { throw new RuntimeException("stub"); }
    public abstract String getLastPathSegment();
}

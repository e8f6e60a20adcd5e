package android.os;

public final class Bundle {
    public CharSequence getCharSequence(String key) { throw new RuntimeException("stub"); }
    public String getString(String key) { throw new RuntimeException("stub"); }
    public void putString(String key, String value) { throw new RuntimeException("stub"); }
}

package android.content.res;

public class Resources {
    public String getQuantityString(int id, int quantity, Object... arguments) { throw new RuntimeException("stub"); }
    public String[] getStringArray(int id) { throw new RuntimeException("stub"); }
}

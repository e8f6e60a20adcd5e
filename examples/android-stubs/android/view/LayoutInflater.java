package android.view;

import android.content.Context;

public abstract class LayoutInflater {
    public static LayoutInflater from(Context context) { throw new RuntimeException("stub"); }
    public View inflate(int layout, ViewGroup parent, boolean isAttached) { throw new RuntimeException("stub"); }
}

package android.widget;

import android.view.View;

public class TextView extends View {
    public CharSequence getError() { throw new RuntimeException("stub"); }
    public void setError(CharSequence error) { throw new RuntimeException("stub"); }
    public CharSequence getText() { throw new RuntimeException("stub"); }
    public final void setText(CharSequence text) { throw new RuntimeException("stub"); }
}

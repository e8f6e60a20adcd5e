package android.view;

import android.content.Context;

public class View {
    public static final int VISIBLE = 0;
    public static final int INVISIBLE = 4;
    public static final int GONE = 8;
    public final <T extends View> T findViewById(int id) { throw new RuntimeException("stub"); }
    public float getAlpha() { throw new RuntimeException("stub"); }
    public void setAlpha(float alpha) { throw new RuntimeException("stub"); }
    public CharSequence getContentDescription() { throw new RuntimeException("stub"); }
    public void setContentDescription(CharSequence text) { throw new RuntimeException("stub"); }
    public final Context getContext() { throw new RuntimeException("stub"); }
    public ViewGroup.LayoutParams getLayoutParams() { throw new RuntimeException("stub"); }
    public void setLayoutParams(ViewGroup.LayoutParams parameters) { throw new RuntimeException("stub"); }
    public int getVisibility() { throw new RuntimeException("stub"); }
    public void setVisibility(int visibility) { throw new RuntimeException("stub"); }
    public final boolean requestFocus() { throw new RuntimeException("stub"); }
    public void setOnClickListener(OnClickListener listener) { throw new RuntimeException("stub"); }
    public interface OnClickListener {
        void onClick(View view);
    }
}

package android.view;

public abstract class ViewGroup extends View {
    public void addView(View child) { throw new RuntimeException("stub"); }
    public View getChildAt(int index) { throw new RuntimeException("stub"); }
    public int getChildCount() { throw new RuntimeException("stub"); }
    public void removeView(View child) { throw new RuntimeException("stub"); }
    public static class LayoutParams {
    }
}

package android.widget;

public abstract class BaseAdapter implements ListAdapter {
    public boolean isEnabled(int position) { throw new RuntimeException("stub"); }
    public void notifyDataSetChanged() { throw new RuntimeException("stub"); }
}

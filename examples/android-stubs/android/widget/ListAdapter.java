package android.widget;

public interface ListAdapter extends Adapter {
    boolean isEnabled(int position);
}

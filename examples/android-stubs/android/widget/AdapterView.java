package android.widget;

import android.view.View;
import android.view.ViewGroup;

public abstract class AdapterView<T extends Adapter> extends ViewGroup {
    public View getEmptyView() { throw new RuntimeException("stub"); }
    public void setEmptyView(View view) { throw new RuntimeException("stub"); }
    public void setOnItemClickListener(OnItemClickListener listener) { throw new RuntimeException("stub"); }
    public void setOnItemLongClickListener(OnItemLongClickListener listener) { throw new RuntimeException("stub"); }
    public interface OnItemClickListener {
        void onItemClick(AdapterView<?> parent, View view, int position, long id);
    }
    public interface OnItemLongClickListener {
        boolean onItemLongClick(AdapterView<?> parent, View view, int position, long id);
    }
}

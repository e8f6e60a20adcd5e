package android.widget;

public class ListView extends AdapterView<ListAdapter> {
    public ListAdapter getAdapter() { throw new RuntimeException("stub"); }
    public void setAdapter(ListAdapter adapter) { throw new RuntimeException("stub"); }
}

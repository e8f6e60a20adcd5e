package android.widget;

import android.view.ViewGroup;

public class LinearLayout extends ViewGroup {
    public static class LayoutParams extends ViewGroup.LayoutParams {
        public float weight;
    }
}

package android.widget;

import android.view.View;

public class ProgressBar extends View {
}

package android.widget;

import android.view.View;

public class ImageButton extends View {
}

package android.app;

import android.content.DialogInterface;

public class Dialog implements DialogInterface {
    public void dismiss() { throw new RuntimeException("stub"); }
}

package android.app;

import android.content.Context;
import android.content.DialogInterface;

public class AlertDialog extends Dialog {
    public static class Builder {
        public Builder(Context context) { throw new RuntimeException("stub"); }
        public Builder setMessage(CharSequence message) { throw new RuntimeException("stub"); }
        public Builder setPositiveButton(int text, DialogInterface.OnClickListener listener) { throw new RuntimeException("stub"); }
        public Builder setNegativeButton(int text, DialogInterface.OnClickListener listener) { throw new RuntimeException("stub"); }
        public AlertDialog show() { throw new RuntimeException("stub"); }
    }
}

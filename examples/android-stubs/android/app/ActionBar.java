package android.app;

public abstract class ActionBar {
    public abstract void setDisplayHomeAsUpEnabled(boolean isUp);
}

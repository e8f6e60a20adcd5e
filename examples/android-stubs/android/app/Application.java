package android.app;

import android.content.ComponentCallbacks2;
import android.content.Context;
import android.content.res.Configuration;

public class Application extends Context implements ComponentCallbacks2 {
    public void onCreate() { throw new RuntimeException("stub"); }
    public void onTrimMemory(int level) { throw new RuntimeException("stub"); }
    public void onLowMemory() { throw new RuntimeException("stub"); }
    public void onConfigurationChanged(Configuration configuration) { throw new RuntimeException("stub"); }
}

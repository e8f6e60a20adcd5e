package android.content;

import android.content.pm.PackageManager;
import android.content.res.AssetManager;
import android.content.res.Resources;
import java.io.File;

public abstract class Context {
    public Context getApplicationContext() { throw new RuntimeException("stub"); }
    public AssetManager getAssets() { throw new RuntimeException("stub"); }
    public File getCacheDir() { throw new RuntimeException("stub"); }
    public File getFilesDir() { throw new RuntimeException("stub"); }
    public ContentResolver getContentResolver() { throw new RuntimeException("stub"); }
    public PackageManager getPackageManager() { throw new RuntimeException("stub"); }
    public String getPackageName() { throw new RuntimeException("stub"); }
    public Resources getResources() { throw new RuntimeException("stub"); }
    public final String getString(int id) { throw new RuntimeException("stub"); }
    public final String getString(int id, Object... arguments) { throw new RuntimeException("stub"); }
    public final <T> T getSystemService(Class<T> service) { throw new RuntimeException("stub"); }
    public void registerComponentCallbacks(ComponentCallbacks callbacks) { throw new RuntimeException("stub"); }
    public void startActivity(Intent intent) { throw new RuntimeException("stub"); }
}

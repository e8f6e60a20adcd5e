package android.content;

import android.net.Uri;
import android.os.ParcelFileDescriptor;
import java.io.FileNotFoundException;

public abstract class ContentResolver {
    public final ParcelFileDescriptor openFileDescriptor(Uri uri, String mode) throws FileNotFoundException { throw new RuntimeException("stub"); }
    public void takePersistableUriPermission(Uri uri, int flags) { throw new RuntimeException("stub"); }
}

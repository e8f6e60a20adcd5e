package android.content.res;

import android.os.ParcelFileDescriptor;
import java.io.Closeable;
import java.io.IOException;

public class AssetFileDescriptor implements Closeable {
    public void close() throws IOException { throw new RuntimeException("stub"); }
    public ParcelFileDescriptor getParcelFileDescriptor() { throw new RuntimeException("stub"); }
    public long getLength() { throw new RuntimeException("stub"); }
    public long getStartOffset() { throw new RuntimeException("stub"); }
}

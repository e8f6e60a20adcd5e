package android.os;

import java.io.Closeable;
import java.io.IOException;

public class ParcelFileDescriptor implements Closeable {
    public void close() throws IOException { throw new RuntimeException("stub"); }
    public int getFd() { throw new RuntimeException("stub"); }
}

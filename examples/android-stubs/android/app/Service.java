package android.app;

import android.content.Context;

public abstract class Service extends Context {
}

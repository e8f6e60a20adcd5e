package android.app;

import android.content.Context;
import android.content.Intent;
import android.os.Bundle;
import android.view.LayoutInflater;
import android.view.Menu;
import android.view.MenuInflater;
import android.view.MenuItem;
import android.view.View;

public class Activity extends Context {
    public static final int RESULT_OK = -1;
    protected void onCreate(Bundle savedInstanceState) { throw new RuntimeException("stub"); }
    protected void onStart() { throw new RuntimeException("stub"); }
    protected void onStop() { throw new RuntimeException("stub"); }
    protected void onDestroy() { throw new RuntimeException("stub"); }
    protected void onSaveInstanceState(Bundle outState) { throw new RuntimeException("stub"); }
    protected void onActivityResult(int requestCode, int resultCode, Intent data) { throw new RuntimeException("stub"); }
    public boolean onCreateOptionsMenu(Menu menu) { throw new RuntimeException("stub"); }
    public boolean onOptionsItemSelected(MenuItem item) { throw new RuntimeException("stub"); }
    public boolean onNavigateUp() { throw new RuntimeException("stub"); }
    public void setContentView(int layout) { throw new RuntimeException("stub"); }
    public <T extends View> T findViewById(int id) { throw new RuntimeException("stub"); }
    public ActionBar getActionBar() { throw new RuntimeException("stub"); }
    public LayoutInflater getLayoutInflater() { throw new RuntimeException("stub"); }
    public MenuInflater getMenuInflater() { throw new RuntimeException("stub"); }
    public Intent getIntent() { throw new RuntimeException("stub"); }
    public void startActivityForResult(Intent intent, int requestCode) { throw new RuntimeException("stub"); }
    public void finish() { throw new RuntimeException("stub"); }
}

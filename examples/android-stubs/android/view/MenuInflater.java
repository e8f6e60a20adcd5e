package android.view;

public class MenuInflater {
    public void inflate(int menu, Menu into) { throw new RuntimeException("stub"); }
}

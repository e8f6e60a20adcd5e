package android.widget;

public class RadioGroup extends LinearLayout {
    public void check(int id) { throw new RuntimeException("stub"); }
    public int getCheckedRadioButtonId() { throw new RuntimeException("stub"); }
}

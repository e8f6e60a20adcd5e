package dev.kvik.notifications

import android.content.Context
import android.widget.Toast

/** Shows a text for a moment, also to those who have it read to them. */
fun Context.tell(text: Int) = Toast.makeText(this, text, Toast.LENGTH_LONG).show()

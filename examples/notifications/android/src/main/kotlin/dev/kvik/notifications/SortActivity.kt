package dev.kvik.notifications

import android.os.Bundle
import android.widget.TextView
import androidx.activity.ComponentActivity
import androidx.lifecycle.lifecycleScope
import dev.kvik.KvikException
import kotlinx.coroutines.launch

/** Shows where a notification belongs and what finding out took. */
class SortActivity : ComponentActivity() {
    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        val view = TextView(this)
        setContentView(view)
        // The scope ends with the activity, and with it the answer.
        lifecycleScope.launch {
            view.text = try {
                sort(Notification("ClinicOne", "Vaccine", "Your vaccination is on Tuesday."))
            } catch (failure: KvikException) {
                failure.message
            }
        }
    }

    private suspend fun sort(notification: Notification): String {
        val (sorted, report) = Sorter.classifier(this).classify(notification)
        val place = sorted?.let { "${it.folder}, priority ${it.priority}" } ?: "nowhere"
        return "$place\n${report.computedTokens} of ${report.promptTokens} prompt tokens computed, " +
            "first token after ${report.prefill.toMillis()} ms"
    }

    override fun onStop() {
        super.onStop()
        Sorter.onStop()
    }

    @Suppress("OVERRIDE_DEPRECATION") // Android deprecates levels of it, and still calls it.
    override fun onTrimMemory(level: Int) {
        super.onTrimMemory(level)
        Sorter.onTrimMemory(level)
    }
}

package dev.kvik.notifications

import android.app.Activity
import android.content.ActivityNotFoundException
import android.content.Intent
import android.net.Uri
import android.os.Bundle
import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.EditText
import android.widget.ImageButton
import android.widget.TextView
import dev.kvik.keepReadable
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.launch

/** Folders, priorities, wishes and the model. What is written is a draft, kept over a rotation, until it is saved. */
class SettingsActivity : Activity() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Main)

    /** The model of the draft; all else of it is in the fields, once they are shown. */
    private var model: String? = null
    private var isShown = false

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.settings)
        actionBar?.setDisplayHomeAsUpEnabled(true)
        findViewById<Button>(R.id.add).setOnClickListener { add() }
        findViewById<Button>(R.id.save).setOnClickListener { save() }
        findViewById<Button>(R.id.choose).setOnClickListener { choose() }
        findViewById<Button>(R.id.embedded).setOnClickListener { showModel(null) }
        scope.launch {
            val saved = sorter.state.first { it.isLoaded }.settings
            show(savedInstanceState?.let(::restored) ?: saved)
        }
    }

    override fun onSaveInstanceState(outState: Bundle) {
        super.onSaveInstanceState(outState)
        if (!isShown) return
        outState.putString(PREFERENCES, written().write())
        outState.putString(MODEL, model)
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    override fun onNavigateUp(): Boolean {
        finish()
        return true
    }

    @Deprecated("The result API that replaces it is a library of its own.")
    override fun onActivityResult(requestCode: Int, resultCode: Int, data: Intent?) {
        val uri = data?.data
        if (requestCode != CHOOSE || resultCode != RESULT_OK || uri == null) return
        if (keepReadable(uri)) showModel(uri.toString()) else tell(R.string.model_refused)
    }

    private fun restored(state: Bundle): Settings? =
        state.getString(PREFERENCES)?.let { Settings(Preferences.read(it), state.getString(MODEL)) }

    private fun show(settings: Settings) {
        settings.preferences.folders.forEach { addRow(it) }
        for ((id, level) in PRIORITY_FIELDS) findViewById<EditText>(id).setText(settings.preferences.priorities[level])
        findViewById<EditText>(R.id.instructions).setText(settings.preferences.instructions)
        showModel(settings.model)
        val tokens = sorter.state.value.prepared?.tokens ?: 0
        findViewById<TextView>(R.id.hash).text = getString(R.string.hash, sorter.state.value.settings.preferences.hash, tokens)
        isShown = true
    }

    private fun showModel(chosen: String?) {
        model = chosen
        val name = chosen?.let { Uri.parse(it).lastPathSegment } ?: getString(R.string.model_embedded)
        findViewById<TextView>(R.id.model).text = name
    }

    private fun add() {
        if (rows().childCount >= Preferences.FOLDERS_MAX) return
        addRow(Folder("", "")).requestFocus()
    }

    private fun addRow(folder: Folder): View {
        val row = layoutInflater.inflate(R.layout.folder, rows(), false)
        row.findViewById<EditText>(R.id.name).setText(folder.name)
        row.findViewById<EditText>(R.id.meaning).setText(folder.meaning)
        val delete = row.findViewById<ImageButton>(R.id.delete)
        delete.contentDescription = getString(R.string.delete_folder, folder.name)
        // An answer needs a folder to name.
        delete.setOnClickListener { if (rows().childCount > 1) rows().removeView(row) }
        rows().addView(row)
        return row
    }

    /** Saves what the fields say; where a folder cannot be used, says so beside it. */
    private fun save() {
        if (!isShown) return
        val preferences = written()
        val problems = preferences.folders.mapIndexed { at, folder -> preferences.problemOf(folder, at) }
        problems.forEachIndexed { at, problem ->
            rows().getChildAt(at).findViewById<EditText>(R.id.name).error = problem?.let { getString(textOf(it)) }
        }
        val wrong = problems.indexOfFirst { it != null }
        if (wrong >= 0) {
            rows().getChildAt(wrong).requestFocus()
            return
        }
        // It goes on behind, also when this screen is gone.
        sorter.changeLater(Settings(preferences, model))
        finish()
    }

    private fun choose() {
        val intent = Intent(Intent.ACTION_OPEN_DOCUMENT).addCategory(Intent.CATEGORY_OPENABLE).setType("*/*")
        try {
            @Suppress("DEPRECATION")
            startActivityForResult(intent, CHOOSE)
        } catch (missing: ActivityNotFoundException) {
            tell(R.string.model_no_picker)
        }
    }

    private fun rows(): ViewGroup = findViewById(R.id.folders)

    /** What the fields say now. */
    private fun written() = Preferences(
        (0 until rows().childCount).map { at ->
            val row = rows().getChildAt(at)
            Folder(textOf(row, R.id.name), textOf(row, R.id.meaning))
        },
        PRIORITY_FIELDS.associate { (id, level) -> level to findViewById<EditText>(id).text.toString().trim() },
        findViewById<EditText>(R.id.instructions).text.toString().trim(),
    )

    private fun textOf(row: View, id: Int): String = row.findViewById<EditText>(id).text.toString().trim()

    private fun textOf(problem: FolderProblem): Int = when (problem) {
        FolderProblem.NO_NAME -> R.string.folder_no_name
        FolderProblem.NAME_TAKEN -> R.string.folder_taken
        FolderProblem.NAME_HAS_QUOTES -> R.string.folder_quotes
        FolderProblem.TOO_LONG -> R.string.folder_long
    }

    private companion object {
        const val PREFERENCES = "preferences"
        const val MODEL = "model"
        const val CHOOSE = 1

        /** In the order of the prompt, which the model was trained on. */
        val PRIORITY_FIELDS = listOf(
            R.id.priority_5 to 5,
            R.id.priority_4 to 4,
            R.id.priority_3 to 3,
            R.id.priority_2 to 2,
            R.id.priority_1 to 1,
        )
    }
}

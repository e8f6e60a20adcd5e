// Copies text, also where the page came over plain HTTP from another machine, which has no clipboard API.

const SAID_MS = 1500;

const saying = new WeakMap(); // buttons that say so now: `{before, timer}`

/** Copies `text` and says so on `button` for a moment. */
export async function copyText(text, button) {
  // A button that is pressed again says already that something is copied.
  const before = saying.get(button)?.before ?? button.textContent;
  const says = (await copied(text)) ? "Copied" : "Not copied";
  clearTimeout(saying.get(button)?.timer);
  button.textContent = says;
  const timer = setTimeout(() => {
    button.textContent = before;
    saying.delete(button);
  }, SAID_MS);
  saying.set(button, { before, timer });
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text);
  }
}

function copiedBySelection(text) {
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

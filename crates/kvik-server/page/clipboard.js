// Copies text, also where the page came over plain HTTP from another machine, which has no clipboard API.

const SAID_MS = 1500;

/** Copies `text` and says so on `button` for a moment. */
export async function copyText(text, button) {
  const before = button.textContent;
  button.textContent = (await copied(text)) ? "Copied" : "Not copied";
  setTimeout(() => {
    button.textContent = before;
  }, SAID_MS);
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

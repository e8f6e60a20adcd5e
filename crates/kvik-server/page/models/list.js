// The models of the server: how each stands, what it holds, and what can be done with it.
import { h, replace } from "../dom.js";
import { bytes, duration, plural } from "../numbers.js";
import { hasFailed, reasonOf } from "./chosen.js";

/** `{element, render(state)}`. */
export function createList(actions) {
  const summary = h("p", { class: "quiet-text", role: "status" });
  const body = h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Models" });
  const reload = h("button", { class: "quiet", onclick: actions.reload }, "Read config.toml again");
  const element = h("section", { class: "panel", "aria-label": "Models of this server" }, summary, body, reload);
  let drawn = null;
  const render = ({ shelf, error }) => {
    const now = JSON.stringify([shelf, error]);
    if (now === drawn) return;
    drawn = now;
    reload.hidden = !shelf || shelf.bytes === null;
    summary.classList.toggle("error-text", error !== null);
    replace(summary, error ?? (shelf ? inMemory(shelf) : "Reading …"));
    const focused = document.activeElement?.dataset?.does;
    replace(body, shelf && shelf.models.length > 0 && table(shelf, actions));
    // A button that was pressed is there again, and still has the focus.
    if (focused) [...body.querySelectorAll("button")].find((button) => button.dataset.does === focused)?.focus();
  };
  return { element, render };
}

function inMemory({ bytes: most, models }) {
  if (models.length === 0) return "There are no models yet.";
  const used = models.reduce((sum, { bytes_used: own }) => sum + (own ?? 0), 0);
  const loaded = plural(models.filter(({ status }) => status === "loaded").length, "model");
  // A tenant is not told what others have stored.
  if (models.some(({ loads }) => loads === null)) return `${loaded} in memory.`;
  // What they may take with all their keys and values is what the server makes room by.
  const reserved = models.filter(({ held }) => held).reduce((sum, { bytes: own }) => sum + own, 0);
  const room = `may take ${bytes(reserved)}`;
  return most === null ? `${bytes(used)} in memory, ${room}.` : `${loaded} in memory: ${bytes(used)}, ${room} of ${bytes(most)}.`;
}

const HEAD = ["Model", "State", "Weights", "Keys and values", "On disk", "Loaded", ""];

function table(shelf, actions) {
  return h(
    "table",
    // The roles are said, because a phone shows rows as cards.
    { class: "numbers", role: "table" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, HEAD.map((title) => h("th", { scope: "col", role: "columnheader" }, title || h("span", { class: "hidden-text" }, "What can be done"))))),
    h("tbody", { role: "rowgroup" }, shelf.models.map((model) => [row(model, shelf, actions), failure(model)])),
  );
}

function row(model, shelf, actions) {
  const { name, aliases, source, held } = model;
  const also = aliases.length > 0 && h("span", { class: "quiet-text" }, ` also ${aliases.join(", ")}`);
  const cell = (at, content) => h("td", { role: "cell", "data-label": HEAD[at] }, content);
  return h(
    "tr",
    { role: "row" },
    h("th", { scope: "row", role: "rowheader", title: source }, name, also),
    cell(1, state(model)),
    cell(2, held ? bytes(held.weights) : "–"),
    cell(3, held ? `${bytes(held.kv_used)} of ${bytes(held.kv)}` : "–"),
    cell(4, held && held.disk !== null ? bytes(held.disk) : "–"),
    cell(5, loadsText(model)),
    h("td", { role: "cell", class: "does" }, buttons(model, shelf, actions)),
  );
}

function loadsText({ loads, load_ms: took }) {
  if (loads === null) return "–";
  return loads === 0 ? "never" : `${plural(loads, "time")}, in ${duration(took)}`;
}

/** Why a model could not be loaded, in a row of its own: it is a sentence, and as wide as the table. */
function failure(model) {
  if (!hasFailed(model)) return null;
  return h("tr", { class: "failure", role: "row" }, h("td", { role: "cell", class: "error-text", colspan: HEAD.length }, reasonOf(model.failed)));
}

function state({ status, in_use: inUse, waiting, expires_in_s: left }) {
  const busy = [inUse > 0 && `${plural(inUse, "request")}`, waiting > 0 && `${waiting} waiting`].filter(Boolean).join(", ");
  const goes = status === "loaded" && left !== null && inUse === 0 ? `, goes in ${duration(1000 * left)}` : "";
  return `${status}${busy && ` (${busy})`}${goes}`;
}

function buttons({ name, status, is_pulled: isPulled }, { bytes: most, can_pull: canPull }, actions) {
  const button = (title, act, kind = "quiet") =>
    h("button", { class: `${kind} small`, "data-does": `${title} ${name}`, "aria-label": `${title} ${name}`, onclick: () => act(name) }, title);
  return [
    most !== null && status === "unloaded" && button("Load", actions.load),
    most !== null && status === "loaded" && button("Unload", actions.unload),
    canPull && isPulled && button("Remove", actions.remove),
  ];
}

// The models of the server: how each stands, what it holds, and what can be done with it.
import { h, replace } from "../dom.js";
import { bytes, duration, plural } from "../numbers.js";

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
  // What they may take with all their keys and values is what the server makes room by.
  const reserved = models.filter(({ held }) => held).reduce((sum, { bytes: own }) => sum + own, 0);
  const room = `may take ${bytes(reserved)}`;
  return most === null ? `${bytes(used)} in memory, ${room}.` : `${loaded} in memory: ${bytes(used)}, ${room} of ${bytes(most)}.`;
}

const HEAD = ["Model", "State", "Weights", "Keys and values", "On disk", "Loaded", ""];

function table(shelf, actions) {
  return h(
    "table",
    { class: "numbers" },
    h("thead", {}, h("tr", {}, HEAD.map((title) => h("th", { scope: "col" }, title || h("span", { class: "hidden-text" }, "What can be done"))))),
    h("tbody", {}, shelf.models.map((model) => row(model, shelf, actions))),
  );
}

function row(model, shelf, actions) {
  const { name, aliases, source, held, loads } = model;
  const also = aliases.length > 0 && h("span", { class: "quiet-text" }, ` also ${aliases.join(", ")}`);
  const loaded = loads === 0 ? "never" : `${plural(loads, "time")}, in ${duration(model.load_ms)}`;
  return h(
    "tr",
    {},
    h("th", { scope: "row", title: source }, name, also),
    h("td", {}, state(model)),
    h("td", {}, held ? bytes(held.weights) : "–"),
    h("td", {}, held ? `${bytes(held.kv_used)} of ${bytes(held.kv)}` : "–"),
    h("td", {}, held && held.disk !== null ? bytes(held.disk) : "–"),
    h("td", {}, loaded),
    h("td", { class: "does" }, buttons(model, shelf, actions)),
  );
}

function state({ status, in_use: inUse, waiting, failed, expires_in_s: left }) {
  if (failed !== null && status === "unloaded") return h("span", { class: "error-text", title: failed }, "cannot be loaded");
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

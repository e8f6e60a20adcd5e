// The model, the system prompt and the sampling of one conversation. What is left empty is the server's choice, which
// stands in the empty field.
import { ask } from "../dialogs.js";
import { h, uniqueId } from "../dom.js";
import { defaultsOf, placeholderOf, sentenceOf } from "./defaults.js";
import { rememberSettings } from "./kept.js";
import { settingsOf, systemOf } from "./state.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: "any", hint: "0 is the likeliest" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: "any", hint: "1 is all" },
  { name: "top_k", label: "Top k", min: 0, max: 1000, step: 1, hint: "0 is all" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: "any", hint: "0 is all" },
  { name: "max_tokens", label: "Tokens at most", min: 1, step: 1, hint: "the rest of the context" },
  { name: "seed", label: "Seed", min: 0, step: 1, hint: "random" },
];
const SWITCHES = [
  { name: "thinking", label: "Think before answering, where the model can" },
  { name: "memory", label: "Remember what no longer fits the context" },
  { name: "stopLoops", label: "End an answer that only repeats itself" },
];

/** Asks for the settings of a conversation and keeps them. */
export async function openSettings({ store, api }, id) {
  const { chat } = store.get();
  const before = settingsOf(chat, id);
  const models = await modelsOf(api);
  const defaults = models.length > 0 ? await defaultsOf(api, before.model) : {};
  const known = chat.open?.id === id ? systemOf(chat.open.messages) : "";
  const system = h("textarea", { id: uniqueId("system"), dir: "auto", rows: 5, value: before.system ?? known });
  const numbers = FIELDS.map((field) => numberField(field, before[field.name]));
  const show = (all) => numbers.forEach(({ name, showDefault }) => showDefault(all[name]));
  show(defaults);
  const switches = SWITCHES.map((field) => switchField(field, before[field.name] !== "off"));
  const changed = async (name) => {
    const all = await defaultsOf(api, name);
    if (model.read().model === name) show(all); // another one may have been chosen meanwhile
  };
  const model = models.length > 1 ? modelField(models, before.model, changed) : null;
  const settings = await ask({
    label: "Settings of this conversation",
    content: [
      h("h2", {}, "Settings of this conversation"),
      model?.element,
      h("label", { for: system.id }, "System prompt"),
      system,
      known && h("p", { class: "quiet-text" }, "Another system prompt makes the server compute the whole conversation anew, once."),
      h("div", { class: "settings-numbers" }, numbers.map(({ element }) => element)),
      switches.map(({ element }) => element),
    ],
    action: "Save",
    focus: system,
    answer: () => chosen(system.value.trim(), known, [...(model ? [model] : []), ...numbers, ...switches]),
  });
  if (settings === null) return;
  store.dispatch({ type: "settings changed", id, settings });
  rememberSettings(id, settings);
}

/** The names of the server's models; none where it does not say. */
async function modelsOf(api) {
  const listed = await api.get("/v1/models").catch(() => ({ data: [] }));
  return listed.data.map(({ id }) => id);
}

/** `change(name)` is called with the chosen model, or `undefined`. */
function modelField(models, value, change) {
  const id = uniqueId("model");
  const option = (name, text) => h("option", { value: name, selected: name === (value ?? "") }, text);
  const select = h("select", { id }, option("", "The one that was used last"), models.map((name) => option(name, name)));
  const read = () => (select.value === "" ? {} : { model: select.value });
  select.addEventListener("change", () => change(read().model));
  return { element: h("div", { class: "field" }, h("label", { for: id }, "Model"), select), read };
}

function numberField({ name, label, hint, ...bounds }, value) {
  const id = uniqueId(name);
  const input = h("input", { id, type: "number", placeholder: hint, ...bounds, value: value ?? "" });
  const read = () => (input.value === "" ? {} : { [name]: Number(input.value) });
  const showDefault = (setting) => {
    input.placeholder = placeholderOf(setting) ?? hint;
    input.title = setting ? `${sentenceOf(setting)}; ${hint}` : hint;
  };
  return { name, element: h("div", { class: "field" }, h("label", { for: id }, label), input), read, showDefault };
}

function switchField({ name, label }, on) {
  const input = h("input", { type: "checkbox", checked: on });
  return { element: h("label", { class: "settings-switch" }, input, label), read: () => (input.checked ? {} : { [name]: "off" }) };
}

function chosen(system, known, fields) {
  const settings = Object.assign({}, ...fields.map(({ read }) => read()));
  return system === known ? settings : { ...settings, system };
}

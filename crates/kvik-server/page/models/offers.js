// Models of the hub that have short names, each with the size of its file and what it needs.
import { h, replace } from "../dom.js";
import { bytes, count } from "../numbers.js";

/** Small and larger models of several families: the first of them that fit are shown before all others. */
const FIRST = ["qwen3:0.6b", "smollm2:360m", "gemma3:1b", "llama3.2:3b", "qwen3:4b", "gemma3:4b", "qwen3:8b", "qwen3:14b", "qwen3:30b-a3b"];
const FIRST_SHOWN = 5;

/** `{element, render(models)}`; `fetch(name)` is called for the model that somebody chose. */
export function createOffers(fetch) {
  const note = h("p", { class: "quiet-text" });
  const first = h("ul", { class: "offers", "aria-label": "Models to fetch" });
  const others = h("ul", { class: "offers", "aria-label": "Other models to fetch" });
  const word = h("input", { type: "search", placeholder: "Search", "aria-label": "Search models to fetch", autocomplete: "off", oninput: () => draw() });
  const summary = h("summary");
  const all = h("details", { class: "offers-all" }, summary, word, others);
  const element = h("div", { class: "offers-part" }, note, first, all);
  let shown = null;
  const draw = () => {
    const { offers, shelf, pulls } = shown;
    element.hidden = !offers || !shelf?.can_pull;
    if (element.hidden) return;
    const left = offers.data.filter(({ name }) => !shelf.models.some((model) => model.name === name));
    const best = FIRST.map((name) => left.find((offer) => offer.name === name && offer.fits)).filter(Boolean).slice(0, FIRST_SHOWN);
    const rest = left.filter((offer) => !best.includes(offer)).sort((a, b) => a.bytes - b.bytes);
    const focused = document.activeElement?.dataset?.offer;
    const row = (offer) => rowOf(offer, pulls.some(({ source, done }) => source === offer.name && !done), fetch);
    replace(note, noteText(offers));
    replace(first, best.map(row));
    replace(others, rest.filter((offer) => matches(offer, word.value)).map(row));
    replace(summary, `${count(rest.length)} others`);
    all.hidden = rest.length === 0;
    // A button that was pressed is there again, and still has the focus.
    if (focused) [...element.querySelectorAll("button")].find(({ dataset }) => dataset.offer === focused)?.focus();
  };
  return {
    element,
    render({ offers, shelf, pulls }) {
      const same = shown !== null && offers === shown.offers && pulls === shown.pulls && names(shelf) === names(shown.shelf);
      shown = { offers, shelf, pulls };
      if (!same) draw();
    },
  };
}

const names = (shelf) => shelf && JSON.stringify([shelf.can_pull, shelf.models.map(({ name }) => name)]);

const matches = ({ name, repository }, word) => `${name} ${repository}`.toLowerCase().includes(word.trim().toLowerCase());

function noteText({ memory_bytes: memory }) {
  const room = memory === null ? "" : ` Files of up to ${bytes(memory)} fit the memory that is free.`;
  return `Models of the Hugging Face hub. In memory a model takes what its file does, and more for what is said to it.${room}`;
}

function rowOf({ name, licence, parameters, quantisation, bytes: size, fits }, isPulled, fetch) {
  const words = `${billions(parameters)} billion parameters, ${quantisation}, ${licence}`;
  const needs = fits ? `about ${bytes(size)}` : `about ${bytes(size)}, more than is free`;
  const button = h("button", { class: "small", "data-offer": name, "aria-label": `Fetch ${name}`, disabled: isPulled, onclick: () => fetch(name) }, "Fetch");
  return h("li", {}, h("b", {}, name), h("span", { class: "quiet-text" }, words), h("span", { class: "needs" }, needs), button);
}

/** 596000000 -> "0.6". */
function billions(parameters) {
  return parameters < 1e10 ? (parameters / 1e9).toFixed(1) : count(parameters / 1e9);
}

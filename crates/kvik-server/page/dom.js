// Elements from data. What comes from a model, a file or a person is text here and never markup.

const PROPERTIES = new Set(["value", "checked", "selected", "indeterminate", "disabled", "open", "hidden"]);
const SVG = "http://www.w3.org/2000/svg";

/**
 * An element: `h("button", {class: "quiet", onclick: send}, "Send")`.
 * Attributes: `on...` are listeners, `style` is an object, null and false are absent. Children: nodes, texts, lists.
 */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) setAttribute(element, name, value);
  append(element, children);
  return element;
}

function setAttribute(element, name, value) {
  if (name.startsWith("on")) {
    if (value) element.addEventListener(name.slice(2), value);
  } else if (name === "style") {
    for (const [property, size] of Object.entries(value)) element.style.setProperty(property, size);
  } else if (PROPERTIES.has(name) && name in element) {
    element[name] = value;
  } else if (value !== null && value !== undefined && value !== false) {
    element.setAttribute(name, value === true ? "" : value);
  }
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

/** Replaces what is in `element` by `children`. */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Sets a text only where it changed, so that nothing is laid out or read aloud for nothing. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Whether a key belongs to an input method, where Enter chooses a word and Escape gives it up; Safari says 229 alone. */
export const composes = (event) => event.isComposing || event.keyCode === 229;

let ids = 0;

/** An id that no other element of the page has, for labels. */
export function uniqueId(prefix) {
  ids += 1;
  return `${prefix}-${ids}`;
}

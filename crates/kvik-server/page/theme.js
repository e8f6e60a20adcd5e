// Light, dark, or as the system has it. The styles read it from `color-scheme`.
import { recall, remember } from "./storage.js";

const CHOICES = [
  { value: "system", text: "System" },
  { value: "light", text: "Light" },
  { value: "dark", text: "Dark" },
];

/** Makes `select` the choice of the theme, and applies what was chosen before. */
export function mountTheme(select) {
  for (const { value, text } of CHOICES) select.append(new Option(text, value));
  select.value = recall("theme", "system");
  apply(select.value);
  select.addEventListener("change", () => {
    remember("theme", select.value);
    apply(select.value);
  });
}

function apply(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

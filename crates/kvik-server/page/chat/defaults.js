// The sampling that is in force where a field is left empty, and where each value comes from.

/** The defaults of a model, of the one that was used last where none is named; empty where the server does not say. */
export async function defaultsOf(api, model) {
  const shown = await api.post("/api/show", { model: model ?? "" }).catch(() => ({}));
  return shown.sampling_defaults ?? {};
}

/** A default as it stands in an empty field, as `0.2 (SmolLM2)`; `undefined` where it is unknown. */
export const placeholderOf = (setting) => setting && `${setting.value} (${setting.family ?? PLACES[setting.source]})`;

/** The same in a sentence. */
export const sentenceOf = (setting) => setting && `${setting.value} where it is left empty: ${REASONS[setting.source](setting)}`;

const PLACES = { flag: "server", file: "model", kvik: "kvik" };

const REASONS = {
  flag: () => "a setting of this server",
  file: () => "the model's file recommends it",
  family: ({ family }) => `recommended for ${family} by its makers`,
  kvik: () => "kvik's own default",
};

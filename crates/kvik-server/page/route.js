// The address of what is shown: `#/view` or `#/view/id`.

/** `{view, id}` of a hash; the first view where it names none. */
export function parseRoute(hash, names) {
  const [view, id = null] = hash.replace(/^#\/?/, "").split("/");
  if (!names.includes(view)) return { view: names[0], id: null };
  return { view, id: id === null || id === "" ? null : decode(id) };
}

/** The hash of a view, and of one thing in it. */
export function routeHash(view, id = null) {
  return id === null ? `#/${view}` : `#/${view}/${encodeURIComponent(id)}`;
}

function decode(id) {
  try {
    return decodeURIComponent(id);
  } catch {
    return null; // half a percent sign: an address that nobody made
  }
}

/** The part of the state that says what is shown. */
export function reduceRoute(route, action) {
  return action.type === "route" ? action.route : route;
}

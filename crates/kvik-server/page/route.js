// The address of what is shown: `#/view`, `#/view/id`, or `#/chat/id/message`.

/** `{view, id, at}` of a hash, `at` the index of a message; the first view where it names none. */
export function parseRoute(hash, names) {
  const [view, id = "", at = ""] = hash.replace(/^#\/?/, "").split("/");
  if (!names.includes(view)) return { view: names[0], id: null, at: null };
  return { view, id: id === "" ? null : decode(id), at: /^\d+$/.test(at) ? Number(at) : null };
}

/** The hash of a view, of one thing in it, and of a message of that. */
export function routeHash(view, id = null, at = null) {
  return [`#/${view}`, id, at].filter((part) => part !== null).map((part, index) => (index === 0 ? part : encodeURIComponent(part))).join("/");
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

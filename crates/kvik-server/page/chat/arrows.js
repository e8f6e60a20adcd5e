// The arrows between the versions of a message: ‹ 2/3 ›.
import { h, replace } from "../dom.js";
import { routeHash } from "../route.js";
import { versionsIn } from "./versions.js";

const NONE = { said: [], coming: null };

/** The arrows at the messages in `list`, and in `coming` those of a message that is not there yet. */
export function mountArrows(app, list, coming) {
  let known = {};
  let shown = NONE;
  let going = null; // where an arrow leads, until its version is there

  const arrowsOf = (versions) => {
    const go = (by) => {
      going = { id: versions.ids[versions.position + by], at: versions.at, by };
      app.navigate(routeHash("chat", going.id, versions.index));
    };
    return versionsElement(versions, go);
  };
  const element = (index) => {
    const versions = shown.said.find((one) => one.index === index);
    return versions ? arrowsOf(versions) : null;
  };
  return {
    element,
    update(items, open) {
      if (items === known.items && open === known.open) return;
      known = { items, open };
      const before = shown;
      shown = open?.status === "ready" ? versionsIn(items, open) : NONE;
      if (JSON.stringify(before) === JSON.stringify(shown)) return;
      for (const message of list.querySelectorAll("[data-index]")) {
        message.querySelector(".versions")?.remove();
        message.querySelector(".message-actions")?.prepend(element(Number(message.dataset.index)) ?? "");
      }
      replace(coming, shown.coming && arrowsOf(shown.coming));
    },
    /** Moves the focus to the arrows in a version to which one of them led, and says in words which one it is. */
    arrive(id) {
      const found = going?.id === id && [...shown.said, shown.coming].find((versions) => versions?.at === going.at);
      if (!found) return null;
      const place = list.querySelector(`[data-index="${found.index}"]`) ?? coming;
      (place.querySelector(`[data-by="${going.by}"]:enabled`) ?? place.querySelector("[data-by]:enabled"))?.focus({ preventScroll: true });
      going = null;
      return wordsOf(found);
    },
  };
}

function versionsElement({ position, ids }, go) {
  const arrow = (by, text, label) => h("button", { class: "quiet small", "aria-label": label, title: label, "data-by": by, disabled: !ids[position + by], onclick: () => go(by) }, text);
  return h(
    "div",
    { class: "versions", role: "group", "aria-label": wordsOf({ position, ids }) },
    arrow(-1, "‹", "Version before"),
    h("span", { class: "number" }, `${position + 1}/${ids.length}`),
    arrow(1, "›", "Next version"),
  );
}

const wordsOf = ({ position, ids }) => `Version ${position + 1} of ${ids.length}`;

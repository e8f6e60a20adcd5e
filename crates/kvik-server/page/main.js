// Starts the page: one store, one api, the navigation, and the view that the address names.
import { createApi } from "./api.js";
import { confirm, notify } from "./dialogs.js";
import { h, replace } from "./dom.js";
import { createKeys } from "./key.js";
import { parseRoute, reduceRoute, routeHash } from "./route.js";
import { mountServer } from "./server.js";
import { combine, createStore } from "./state.js";
import { mountTheme } from "./theme.js";
import { VIEWS } from "./views.js";

const NAMES = VIEWS.map((view) => view.name);

function start() {
  const app = createApp();
  mountTheme(document.getElementById("theme"));
  // The hash is the route, so this link cannot be an ordinary one.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("view").focus();
  });
  mountServer(document.getElementById("server"), app);
  mountViews(document.getElementById("view"), document.getElementById("nav"), app);
}

function createApp() {
  const reducers = { route: reduceRoute };
  const initial = { route: parseRoute(location.hash, NAMES) };
  for (const { name, initial: part = null, reduce = (same) => same } of VIEWS) {
    reducers[name] = reduce;
    initial[name] = part;
  }
  const store = createStore(combine(reducers), initial);
  const navigate = (hash) => {
    location.hash = hash;
  };
  addEventListener("hashchange", () => store.dispatch({ type: "route", route: parseRoute(location.hash, NAMES) }));
  return { store, api: createApi(createKeys()), navigate, notify, confirm };
}

/** Mounts the view of the route and unmounts the one before; a change of the id alone is the view's own affair. */
function mountViews(root, nav, app) {
  const links = VIEWS.map(({ name, title }) => h("a", { href: routeHash(name) }, title));
  replace(nav, links);
  let shown = null;
  let unmount = () => {};
  const show = ({ route }) => {
    if (route.view === shown) return;
    unmount();
    shown = route.view;
    const view = VIEWS.find(({ name }) => name === shown);
    links.forEach((link, at) => {
      if (VIEWS[at] === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    document.title = `${view.title} · kvik`;
    root.className = `view-${shown}`;
    unmount = view.mount(replace(root), app);
  };
  app.store.subscribe(show);
  show(app.store.get());
}

start();

// The views of the page, in the order of the navigation. A new view is a folder and a line here.
//
// A view is `{name, title, initial, reduce, mount}`: the part of the state under its name starts as `initial` and is
// changed by `reduce(part, action)`; `mount(root, app)` shows it in `root` and returns the function that ends it.
// `app` is `{store, api, navigate(hash), notify(text, kind), confirm(question) -> Promise<string | null>}`.
import * as cache from "./cache/view.js";
import * as chat from "./chat/view.js";
import * as memory from "./memory/view.js";
import * as models from "./models/view.js";
import * as retention from "./retention/view.js";

export const VIEWS = [chat, memory, cache, retention, models];

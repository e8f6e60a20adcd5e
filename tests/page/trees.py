"""Prefix trees as `/v1/cache/tree` sends them, for what a server under test cannot be made to hold quickly."""
import random
import urllib.parse


def node(id, parent=None, start=0, tokens=16, weight=None, **more):
    return {
        "id": id, "parent": parent, "tenant": "default", "start": start, "tokens": tokens,
        "weight": tokens if weight is None else weight, "children": 0, "folded": {"nodes": 0, "tokens": 0},
        "ram_tokens": tokens, "disk_tokens": 0, "age_s": 12.5, "reuses": 4, "pinned": False, "in_use": False,
        "priority": 0, "expires_s": None,
    } | more


def tree(nodes, nodes_total=None, tokens_total=None):
    return {
        "object": "cache.tree", "block_tokens": 16, "block_bytes": 49152,
        "nodes_total": len(nodes) if nodes_total is None else nodes_total,
        "tokens_total": sum(n["tokens"] for n in nodes) if tokens_total is None else tokens_total,
        "truncated": nodes_total is not None and nodes_total > len(nodes), "nodes": nodes,
    }


def family():
    """A prompt of 160 tokens that three others continue, one of them on disk and one pinned, and another prompt."""
    return tree([
        node("n1-0", tokens=160, weight=640, children=3, reuses=9, in_use=True, age_s=None),
        node("n2-0", "n1-0", 160, 320, ram_tokens=0, disk_tokens=320, age_s=4000),
        node("n3-0", "n1-0", 160, 96, pinned=True, age_s=None),
        node("n4-0", "n1-0", 160, 64, disk_tokens=64),
        node("n5-0", tokens=160, tenant="acme", age_s=700),
    ])


def large(nodes=2000, nodes_total=2000, seed=7):
    """So many nodes, each below an earlier one; the rest of `nodes_total` is folded into them."""
    draw = random.Random(seed)
    made = [node("n0-0", tokens=1600)]
    for at in range(1, nodes):
        parent = made[draw.randrange(max(0, at // 3 - 8), at) if at > 12 else 0]
        tokens = 16 * draw.randint(1, 40)
        tier = draw.choice([{}, {}, {"ram_tokens": 0, "disk_tokens": tokens}, {"disk_tokens": tokens}])
        made.append(node(f"n{at}-0", parent["id"], parent["start"] + parent["tokens"], tokens,
                         age_s=draw.expovariate(1 / 900), reuses=draw.randrange(9), **tier))
    by_id = {n["id"]: n for n in made}
    for _ in range(nodes_total - nodes):
        folded = made[draw.randrange(nodes)]["folded"]
        folded["nodes"] += 1
        folded["tokens"] += 16
    for n in reversed(made):
        n["weight"] = n["tokens"] + n["folded"]["tokens"] + n.pop("_below", 0)
        if n["parent"]:
            parent = by_id[n["parent"]]
            parent["children"] += 1
            parent["_below"] = parent.get("_below", 0) + n["weight"]
    total = sum(n["tokens"] + n["folded"]["tokens"] for n in made)
    return tree(made, nodes_total, total)


def details(node, text="You are a helper.", prompt=(1, 2, 3), **more):
    kept = {key: node[key] for key in ("id", "start", "tokens", "ram_tokens", "disk_tokens", "age_s", "reuses",
                                        "pinned", "priority", "expires_s")}
    why = {"kept": "used", "sentence": "It was used 12 s ago."}
    return {"object": "cache.node", "text": text, "text_truncated": False, "prompt": list(prompt), "pins": [], "why": why} | kept | more


def stats(at, prompt=0, cached=0, generated=0, scope="server", disk=None):
    is_server = scope == "server"
    return {
        "object": "stats", "time": 1763845926.0 + at, "started": 1763840000.0, "scope": scope,
        "tokens": {"prompt": prompt, "cached": cached, "by_tier": {"ram": cached, "disk": 0}, "computed": prompt - cached,
                   "generated": generated},
        "requests": {"answered": at, "failed": 0, "refused": 0},
        "queue": {"running": 2, "waiting": at % 3, "parallel": 16} if is_server else None,
        "kv": {"ram": {"bytes": 49152 * (10 + at), "capacity_bytes": 49152 * 400, "pinned_bytes": 49152 * 6}, "disk": disk}
        if is_server else None,
    }


class Fake:
    """Answers the routes of the cache for one page: `tree` may be changed while the page looks."""

    def __init__(self, page, tree, scope="server"):
        self.tree, self.scope, self.texts = tree, scope, {}
        self.at, self.prompt, self.cached, self.generated = 0, 0, 0, 0
        self.asked = []
        self.limit, self.pins = {}, {}  # headers of answers; ids of pins, by node
        page.route("**/v1/cache/tree**", self.on_tree)
        page.route("**/v1/stats", self.on_stats)

    def on_tree(self, route):
        url = urllib.parse.urlparse(route.request.url)
        self.asked.append(url.path + ("?" + url.query if url.query else ""))
        id = url.path.removeprefix("/v1/cache/tree").strip("/")
        under = urllib.parse.parse_qs(url.query).get("under", [id])[0]
        found = [n for n in self.tree["nodes"] if n["id"] == under]
        if under and not found:
            error = {"message": "there is no such node", "type": "invalid_request_error", "param": None, "code": "node_not_found"}
            route.fulfill(status=404, json={"error": error})
        elif id:
            route.fulfill(json=details(found[0], text=self.texts.get(id, "You are a helper."), pins=self.pins.get(id, [])), headers=self.limit)
        else:
            route.fulfill(json=self.tree | {"nodes": below(self.tree["nodes"], under)} if under else self.tree, headers=self.limit)

    def on_stats(self, route):
        self.at += 1
        route.fulfill(json=stats(self.at, self.prompt, self.cached, self.generated, self.scope), headers=self.limit)


def below(nodes, under):
    """The node `under` and all below it."""
    kept = {under}
    for n in nodes:
        if n["parent"] in kept:
            kept.add(n["id"])
    return [n for n in nodes if n["id"] in kept]

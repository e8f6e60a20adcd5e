#!/usr/bin/env python3
"""The structure of the crates in figures: rooms, circles of imports, fields, lengths of functions.

    tools/structure.py                  this checkout
    tools/structure.py OTHER THIS       two checkouts side by side

A room is a file of `src` without its tests. Imports are read as text (`use` trees and paths in the code);
a circle is a set of files, or of folders, that import one another. What a file names of the folder it lies in is
no import of it.
"""

import argparse
import pathlib
import re
import statistics

CRATES = ["kvik-kernels", "kvik-cache", "kvik-gpu", "kvik-text", "kvik-model", "kvik-engine", "kvik-memory", "kvik-session", "kvik-remote", "kvik-shelf", "kvik-library", "kvik-serving", "kvik-server", "kvik", "kvik-c", "kvik-uniffi"]
# Only what a `use` tree has: a text may begin a line with this word, too.
USE = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?use ([\w:{},*\s#]+);", re.M)
PATH = re.compile(r"(?<![\w:])(?:crate|super|self)(?:::\w+)+")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=pathlib.Path, help="checkouts to measure [default: this one]")
    checkouts = parser.parse_args().checkouts or [pathlib.Path(__file__).resolve().parent.parent]
    for crate in CRATES:
        print(f"{crate}")
        columns = [figures(checkout / "crates" / crate / "src") for checkout in checkouts]
        for name in columns[0]:
            print(f"  {name:<42}" + "".join(f"{column[name]:<44}" for column in columns).rstrip())


def figures(root):
    """What is said of one crate, by name."""
    rooms = {module_of(path.relative_to(root)): code_of(path) for path in sorted(root.rglob("*.rs")) if is_room(path)}
    files = {module_of(path.relative_to(root)): path.relative_to(root) for path in root.rglob("*.rs") if is_room(path)}
    imports = {module: imported(module, code, rooms) for module, code in rooms.items()}
    lengths = sorted(length for code in rooms.values() for length in functions(code))
    folders = {}
    for path in files.values():
        folders[str(path.parent)] = folders.get(str(path.parent), 0) + 1
    fields, struct = max((count, f"{name} in {files[module]}") for module, code in rooms.items() for name, count in structs(code))
    circles = sorted((len(circle) for circle in circles_of(imports)), reverse=True)
    return {
        "rooms, lines": f"{len(rooms)}, {sum(code.count(chr(10)) for code in rooms.values())}",
        "fullest folders": ", ".join(f"{name} {count}" for name, count in sorted(folders.items(), key=lambda f: -f[1])[:3]),
        "rooms on the ground floor": folders.get(".", 0),
        "circles of folders": sizes(sorted(map(len, circles_of(by_folder(imports))), reverse=True)),
        "circles of files": sizes(circles),
        "most fields": f"{fields}: {struct}",
        "functions: median, p90, p99, longest": ", ".join(map(str, percentiles(lengths))),
        "functions above 25, 40, 70 lines": ", ".join(str(sum(x > limit for x in lengths)) for limit in (25, 40, 70)),
    }


def is_room(path):
    return not any("test" in part for part in path.parts[-3:]) and path.name not in ("lib.rs", "main.rs")


def module_of(path):
    parts = path.with_suffix("").parts
    return parts[:-1] if parts[-1] == "mod" else parts


def code_of(path):
    """The text without comments and without what only tests compile."""
    return "".join(re.sub(r"//.*", "", line) + "\n" for line in without_tests(path.read_text()))


def without_tests(text):
    """The lines of a file without the items that only tests compile, as `tidy.rs` finds them."""
    lines = iter(text.splitlines())
    for line in lines:
        code = line.lstrip()
        if code == "#[cfg(test)]" or code.startswith("#[cfg(all(test,"):
            skip_item(lines, line[: len(line) - len(code)])
        else:
            yield line


def skip_item(lines, margin):
    """Skips the item behind an attribute: rustfmt closes an item at its own indentation."""
    outermost = (line.removeprefix(margin) for line in lines if re.match(margin + r"[^ /]", line))
    first = next((line for line in outermost if not line.startswith(("#", ")"))), "")
    if not first.endswith((";", ",", "}")):
        next((line for line in outermost if re.fullmatch(r"[)\]]*}[)\]}]*[;,]?|[)\]]*[;,]", line)), None)


def imported(module, code, rooms):
    """The rooms that one room names."""
    uses = [leaf for tree in USE.findall(code) for leaf in leaves(tree)]
    paths = [tuple(leaf.split("::")) for leaf in uses + PATH.findall(code)]
    found = {room_of(absolute(path, module), rooms) for path in paths}
    # A room within another one knows where it is: that is no arrow.
    around = {module[:depth] for depth in range(len(module))}
    return found - {None, module} - around


def leaves(tree):
    """The paths of a `use` tree."""
    tree = re.sub(r"\s+as\s+\w+|\s", "", tree)
    if "{" not in tree:
        return [tree]
    start = tree.index("{")
    parts, depth, part = [], 0, ""
    for c in tree[start + 1 : tree.rindex("}")]:
        depth += (c == "{") - (c == "}")
        if c == "," and depth == 0:
            parts, part = parts + [part], ""
        else:
            part += c
    return [tree[:start] + leaf for part in parts + [part] if part for leaf in leaves(part)]


def absolute(path, module):
    if path[0] == "crate":
        return path[1:]
    if path[0] == "self":
        return module + path[1:]
    while path and path[0] == "super":
        module, path = module[:-1], path[1:]
        if not path or path[0] != "super":
            return module + path
    # A name without a root is a child of the room, or another crate.
    return module + path


def room_of(path, rooms):
    while path and path not in rooms:
        path = path[:-1]
    return path or None


def by_folder(imports):
    folders = {}
    for module, uses in imports.items():
        to = folders.setdefault(module[0], set())
        to.update(use[0] for use in uses if use[0] != module[0])
    return folders


def circles_of(graph):
    """Strongly connected sets of more than one, by reachability: the graphs are small."""
    reached = {node: reach(graph, node) for node in graph}
    sets = {frozenset(other for other in reached[node] if node in reached.get(other, ())) for node in graph}
    return [circle for circle in sets if len(circle) > 1]


def reach(graph, node):
    seen, todo = set(), [node]
    while todo:
        for other in graph.get(todo.pop(), ()):
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


def functions(code):
    """Lines of each function: rustfmt closes it at the indentation at which it began."""
    lines = code.split("\n")
    for start, line in enumerate(lines):
        if re.match(r"\s*(pub(\(\w+\))? )?(const |unsafe |async )*fn \w", line):
            opens = next((l for l in lines[start:] if l.endswith(("{", ";", "}"))), "")
            if opens.endswith("{"):
                closing = line[: len(line) - len(line.lstrip())] + "}"
                end = next((i for i, l in enumerate(lines[start:]) if l == closing), 0)
                yield end + 1


def structs(code):
    for match in re.finditer(r"\bstruct (\w+)[^;{(]*\{(.*?)\n\}", code, re.S):
        yield match.group(1), len(re.findall(r"^    (?:pub(?:\([^)]*\))? )?\w+:", match.group(2), re.M))


def percentiles(lengths):
    at = lambda share: lengths[min(len(lengths) - 1, int(len(lengths) * share))]
    return int(statistics.median(lengths)), at(0.9), at(0.99), lengths[-1]


def sizes(counts):
    return f"{len(counts)} (of {', '.join(map(str, counts))})" if counts else "none"


if __name__ == "__main__":
    main()

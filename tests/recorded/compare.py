"""Compares two sets of answers.

Binding are status, headers, and every byte of a body. The text of an error is read by people: where it alone differs
that is listed by itself, and binds with `exact`. With `shape`, generated text and the numbers that follow from it may
differ, as they may between two kinds of processors: then a value is its type, and what errors say is binding still.
"""
import itertools
import json

MISSING = "(absent)"


class Differences:
    def __init__(self, exact):
        self.exact = exact
        self.binding = []
        self.worded = []

    def add(self, where, path, before, after):
        worded = path == "body.error.message" and isinstance(before, str) and isinstance(after, str) and before and after
        (self.worded if worded and not self.exact else self.binding).append((where, path, before, after))

    def report(self):
        """Prints them; whether there is none that binds."""
        for title, found in (("differences", self.binding), ("errors in other words, which do not bind", self.worded)):
            if found:
                print(f"{len(found)} {title}:")
            for where, group in itertools.groupby(found, key=lambda difference: difference[0]):
                print(f"  {where}")
                for _, path, before, after in group:
                    print(f"    {path}\n      - {shown(before)}\n      + {shown(after)}")
        return not self.binding


def shown(value, most=400):
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def compare(before, after, shape=False, exact=False):
    found = Differences(exact)
    before, after = by_name(before), by_name(after)
    for where in [*before, *(where for where in after if where not in before)]:
        one, other = before.get(where), after.get(where)
        if one is None or other is None:
            found.add(where, "answer", *(MISSING if answer is None else "(present)" for answer in (one, other)))
        elif shape and "error" not in body_of(one):
            walk(found, where, "", shape_of_answer(one), shape_of_answer(other))
        else:
            walk(found, where, "", one, other)
    return found


def by_name(answers):
    return {f"{answer['set']}: {answer['name']}": answer for answer in answers}


def body_of(answer):
    body = answer.get("body")
    return body if isinstance(body, dict) else {}


def walk(found, where, path, one, other):
    """Differences of two values, each at the innermost place; the order of fields counts."""
    if same(one, other):
        return
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(name for name in other if name not in one)]
        for name in names:
            walk(found, where, f"{path}.{name}".lstrip("."), one.get(name, MISSING), other.get(name, MISSING))
        if list(one) != list(other) and set(one) == set(other):
            found.add(where, f"order of the fields of {path or 'the answer'}", list(one), list(other))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other)):
            walk(found, where, f"{path}[{i}]", a, b)
    else:
        found.add(where, path, one, other)


def same(one, other):
    """Equal also in the kind of number and the order of fields."""
    return json.dumps(one) == json.dumps(other)


def shape_of_answer(answer):
    shaped = {name: answer[name] for name in ("set", "name", "status", "headers")}
    if "events" in answer:
        return shaped | {"events": forms([parsed(event) for event in answer["events"]])}
    return shaped | {"body": shape(parsed(answer["body"]))}


def parsed(value):
    """A body that was kept as text, because only so it is kept to the byte."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


# Fields whose text is chosen from a few, whatever the model says.
NAMED = {"object", "model", "role", "type", "param", "code", "owned_by", "system_fingerprint", "build_info", "samples", "chat_template", "tenant", "schema_notes", "status"}


def shape(value, name=""):
    """Types instead of values; of an array the forms of its items."""
    if name in NAMED and not isinstance(value, dict):
        return value
    if isinstance(value, dict):
        return {name: shape(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return forms(value)
    return "null" if value is None else "number" if type(value) in (int, float) else type(value).__name__


def forms(values):
    """The different shapes of an array's items, in the order in which they appear."""
    different = {}
    for value in values:
        shaped = value if value == "[DONE]" else shape(value)
        different.setdefault(json.dumps(shaped), shaped)
    return list(different.values())

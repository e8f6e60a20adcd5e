"""Prompts of which parts were computed elsewhere, and questions whose answers stand in those parts.

A prompt is a list of segments: what is new, and runs, each with a prompt in which it stood before. All text is made
from a seed; every fact is a random number or name, so that no answer is known without reading.
"""
import dataclasses
import random

PLACES = (
    "harbour mill tower bakery orchard library quarry station chapel foundry garden theatre tannery granary lighthouse "
    "brewery"
).split()
NAMES = (
    "Marlow Quinn Abbot Dexter Sutton Harlan Keller Vaughn Morton Bishop Palmer Fowler Conway Draper Hobart Lowell"
).split()
GOODS = "timber salt wool glass copper grain paper cloth oil tools bricks leather".split()
VERBS = "load fetch parse merge split render check store export import scan index".split()
NOUNS = "orders users events pages tokens images routes tables files jobs caches keys".split()
DIRECTORIES = (
    "/home/mara/projects/falcon /home/ines/work/river-tools /srv/build/atlas /home/tom/src/kestrel "
    "/data/checkouts/orion /home/li/code/lantern-app /opt/agents/workspace/juniper /home/olga/repos/pine"
).split()
# Control tokens of a prompt: ChatML, which both measured models were trained on.
SYSTEM, END, USER = "<|im_start|>system\n", "<|im_end|>\n", "<|im_start|>user\n"


@dataclasses.dataclass(frozen=True)
class Question:
    """`kind` of question, its text, how the answer begins, and the answer."""

    kind: str
    text: str
    begin: str
    answer: str


@dataclasses.dataclass(frozen=True)
class Prompt:
    """Segments of a prompt; those numbered in `reused` stood in the prompts `earlier` too."""

    segments: tuple
    reused: frozenset
    earlier: tuple
    questions: tuple


def documents(seed, alone=False):
    """Eight memos in another order than before; with `alone`, each stood in a prompt of its own."""
    r = random.Random(seed)
    places = r.sample(PLACES, 8)
    facts = {p: (str(r.randint(1000, 9999)), n) for p, n in zip(places, r.sample(NAMES, 8))}
    memos = {p: memo(r, p, *facts[p]) for p in places}
    after = places[:]
    while any(old == new for old, new in zip(places, after)):
        r.shuffle(after)
    head = f"{SYSTEM}You answer questions about memos, briefly and exactly.{END}{USER}"
    single = f"{SYSTEM}You file memos.{END}{USER}"
    earlier = tuple((single, memos[p]) for p in places) if alone else ((head, *(memos[p] for p in places)),)
    asked = [q for p in after for q in memo_questions(p, *facts[p])]
    return Prompt((head, *(memos[p] for p in after)), frozenset(range(1, 9)), earlier, tuple(r.sample(asked, 8)))


def memo(r, place, code, name):
    goods = r.sample(GOODS, 3)
    return (
        f"# Memo about the {place}\n"
        f"The {place} was built in {r.randint(1700, 1990)} and deals in {goods[0]} and {goods[1]}. "
        f"It is open on {r.randint(2, 6)} days of the week. The {place} reports to {name}. "
        f"Last month {r.randint(20, 900)} crates of {goods[2]} were moved, and the roof was repaired. "
        f"The {place} opens with code {code}. Visitors leave their coats at the door and sign the book. "
        f"The next inspection takes place in {r.randint(2, 11)} months.\n\n"
    )


def memo_questions(place, code, name):
    yield Question("code", f"With which code does the {place} open?", f"The {place} opens with code ", code)
    yield Question("contact", f"To whom does the {place} report?", f"The {place} reports to", f" {name}")


def directory(seed, tools=10, files=12):
    """A long prompt of an agent in another directory: all behind it stood in the prompt of the first directory."""
    r = random.Random(seed)
    old, new = r.sample(DIRECTORIES, 2)
    listed, asked = tool_list(r, tools)
    pairs = r.sample([(v, n) for v in VERBS for n in NOUNS], files)
    for verb, noun in pairs:
        text, questions = source_file(r, f"src/{noun}/{verb}.py", verb, noun)
        listed += text
        asked += questions[:2]
    head = f"{SYSTEM}You are a coding agent. You work carefully and use the tools below.\nWorking directory: "
    rest = f"\nToday's plan: keep changes small, run the tests, say what was done.\n\n{listed}{END}{USER}"
    verb, noun = r.choice(pairs)
    path = f"src/{noun}/{verb}.py"
    named = (
        Question("changed", "What is the working directory?", "The working directory is", f" {new}"),
        Question("changed", f"What is the absolute path of {path}?", "The absolute path is", f" {new}/{path}"),
    )
    return Prompt((head, new, rest), frozenset({2}), ((head, old, rest),), (*r.sample(asked, 8), *named))


def tool_list(r, count):
    text, questions = "# Tools\n", []
    for verb, noun in r.sample([(v, n) for v in VERBS for n in NOUNS], count):
        tool, limit, owner = f"{verb}_{noun}", str(r.randint(100, 999)), r.choice(GOODS)
        text += (
            f"## {tool}\nWill {verb} the {noun} of the project and return a list. Takes the fields path (text), "
            f"recursive (true or false) and filter (text, may be empty). The timeout of {tool} is {limit} seconds. "
            f"It never changes files outside the project; on an error it returns one line that names the {owner}.\n"
        )
        asked = f"What is the timeout of the tool {tool} in seconds?"
        questions.append(Question("tool", asked, f"The timeout of {tool} is ", limit))
    return text + "\n", questions


def source_file(r, path, verb, noun, functions=1):
    text, questions = f"# File {path}\n```python\nimport json\n\n", []
    label = f"{verb.upper()}_{noun.upper()}"
    retries, port = str(r.randint(100, 999)), str(r.randint(1000, 9999))
    text += f"{label}_RETRIES = {retries}\n{label}_PORT = {port}\n\n"
    questions.append(Question("file", f"What is the value of {label}_RETRIES?", f"{label}_RETRIES = ", retries))
    questions.append(Question("file", f"What is the value of {label}_PORT?", f"{label}_PORT = ", port))
    for other in r.sample([v for v in VERBS if v != verb], functions):
        size = str(r.randint(100, 999))
        text += (
            f"def {other}_{noun}(path, size={size}):\n    \"\"\"Will {other} the {noun} at `path`.\"\"\"\n"
            f"    with open(path) as file:\n        items = json.load(file)\n    return items[:size]\n\n"
        )
        asked = f"What is the default of size in {other}_{noun}()?"
        questions.append(Question("file", asked, f"def {other}_{noun}(path, size=", size))
    return text + "```\n\n", questions


def subagents(seed):
    """Files that an agent read behind its tools, in another order and behind the system text of a sub-agent."""
    r = random.Random(seed)
    tools, _ = tool_list(r, 4)
    agent = (
        f"{SYSTEM}You are a coding agent. You plan, you edit, you run the tests.\n\n{tools}{END}{USER}"
        "The tests of the project fail since yesterday. Read the files and find out why.\n\n"
    )
    role = r.choice(["reviewer", "tester", "reader"])
    sub = (
        f"{SYSTEM}You are a {role}. You answer one question of another agent about files of the project, in one line, "
        f"and change nothing.{END}{USER}These are the files.\n\n"
    )
    made = [source_file(r, f"src/{n}/{v}.py", v, n, 3) for v, n in zip(r.sample(VERBS, 4), r.sample(NOUNS, 4))]
    order = list(range(4))
    while order == sorted(order):
        r.shuffle(order)
    earlier = ((agent, *(text for text, _ in made)),)
    asked = [q for _, questions in made for q in questions]
    return Prompt((sub, *(made[i][0] for i in order)), frozenset(range(1, 5)), earlier, tuple(r.sample(asked, 8)))


TASKS = {
    "documents": documents,
    "documents-alone": lambda seed: documents(seed, alone=True),
    "directory": directory,
    "sub-agents": subagents,
}

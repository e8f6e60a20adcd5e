"""In what order the held-out cases are asked, and windows of chats and stories for perplexity.

make_order.py TOKENIZER MODEL_DIR

The first cases of each file are a sample in which every group of the file has its share: the one on which kvpress was measured.
All further cases follow. The windows are made by the training generators with held-out names.
"""
import collections, json, os, random, sys
from tokenizers import Tokenizer
from pools import Ctx
import tasks

SEED = 1
SAMPLE = dict(recall=120, passkey=80, notify=100, summary=60)
GROUP = dict(recall=lambda c: c["bucket"], passkey=lambda c: (c["size"], c["depth"]), notify=lambda c: c["format"], summary=lambda c: c["merge"])
WINDOWS = dict(chat=15, story=12)
TOKENS = 1024
CHATS = range(960, 1101)          # tokens of a chat that becomes a window
ANSWERS = 40                      # tokens of answers that its second half has at least


def order(task, rows):
    """Ids of a file, a sample of `SAMPLE[task]` first."""
    groups = collections.defaultdict(list)
    for r in rows:
        groups[GROUP[task](r)].append(r["id"])
    first = []
    for k in sorted(groups, key=str):
        random.Random(SEED).shuffle(groups[k])
        first += groups[k][:max(1, round(SAMPLE[task] * len(groups[k]) / len(rows)))]
    random.Random(SEED).shuffle(first)
    rest = [r["id"] for r in rows if r["id"] not in set(first)]
    random.Random(SEED).shuffle(rest)
    return first + rest


def chat(x, enc):
    """A conversation of facts and questions, and which of its messages answer a question about an earlier fact."""
    while True:
        m = tasks.memory(x, 1600, 9)
        ok, n = [], 0
        for k, y in enumerate(m):
            head, body = enc(f"<|im_start|>{y['role']}\n"), enc(y["content"] + "<|im_end|>")
            good = y["role"] == "assistant" and m[k - 1]["content"].rstrip().endswith("?") and y["content"] not in tasks.ACKS
            ok += [False] * head + [good] * body + [False]
        if len(ok) in CHATS and sum(ok[TOKENS // 2:TOKENS]) >= ANSWERS:
            answers = [k for k, y in enumerate(m) if y["role"] == "assistant" and m[k - 1]["content"].rstrip().endswith("?") and y["content"] not in tasks.ACKS]
            return dict(kind="chat", messages=m, answers=answers)


def story(x, enc):
    t = ""
    while enc(t) < TOKENS:
        t += tasks.prose(x, 3) + "\n\n"
    return dict(kind="story", text=t)


def main():
    _, tokenizer, out = sys.argv
    tk = Tokenizer.from_file(tokenizer)
    enc = lambda s: len(tk.encode(s, add_special_tokens=False).ids)
    path = lambda name: os.path.join(out, name)
    orders = {task: order(task, [json.loads(l) for l in open(path(f"eval-{task}.jsonl"))]) for task in SAMPLE}
    with open(path("eval-order.json"), "w") as f:
        f.write("{\n" + ",\n".join(f' "{task}": {json.dumps(ids)}' for task, ids in orders.items()) + "\n}\n")
    with open(path("eval-windows.jsonl"), "w") as f:
        for make, seed in ((chat, 20261126), (story, 20261125)):
            x = Ctx(seed, True)
            for _ in range(WINDOWS[make.__name__]):
                f.write(json.dumps(make(x, enc), ensure_ascii=False) + "\n")


main()

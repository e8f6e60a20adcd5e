#!/usr/bin/env python3
"""Writes stored.json: what others make of SmolLM2's own file. Tokens are those of Hugging Face's tokenizers with the vocabulary
and merges of the file, prompts are the file's template in Jinja2.

    pip install gguf tokenizers jinja2
    tests/real/store.py MODEL.gguf
"""
import json
import pathlib
import sys

import gguf
import jinja2
import jinja2.sandbox
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

STORED = pathlib.Path(__file__).parent / "stored.json"
CONTROL = 3
TEXTS = [
    "", " ", "  ", "\n", "\n\n", "\t", " \n \n", "a", " a", "Hello, world!", "Hello  world", "hello\nworld\n", "   leading and trailing   ",
    "I'm sure you're right, they've said we'll see; she'd know it's John's.", "ISN'T IT 'TWAS", "don\u2019t \u201cquote\u201d \u2014 dash\u2026",
    "0", "7", "42", "1234567890", "3.14159", "2026-11-29T10:15:00Z", "1,000,000.50", "x2y3z", "v1.2.3-rc4", "\u0663\u0664\u0665", "\u00b2\u00b3 \u00bd \u2167",
    "https://example.org/a/b?c=d&e=%20f#g", "mail@example.org", "C:\\Users\\me\\file.txt", "/usr/local/bin/python3.11",
    "def f(x):\n    return {k: v**2 for k, v in x.items()}\n", "\tif (a != b && c <= d) { e++; } // done", "SELECT * FROM t WHERE a = 'b';",
    "#include <stdio.h>\nint main(void) { return 0; }", "{\"a\": [1, 2, {\"b\": null}], \"c\": true}", "<p class=\"x\">Hi &amp; bye</p>", "$E = mc^2$ \\frac{1}{2}",
    "The quick brown fox jumps over the lazy dog.", "ThisIsCamelCase and_this_is_snake_case and-this-is-kebab-case", "ALL CAPS TEXT", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "na\u00efve caf\u00e9 \u00fcber stra\u00dfe \u00c5ngstr\u00f6m", "e\u0301 is not \u00e9", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c", "\uc548\ub155\ud558\uc138\uc694",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7", "a\u00a0b\u2003c\u200bd\ufeffe", "\u0000 \u0001 \u007f",
    "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|>", "a<|im_end|>b", "<|endoftext|>", "<|im_start", "<repo_name> <file_sep> <issue_start>",
    "One. Two? Three! (four) [five] {six} \"seven\" 'eight'", "***bold*** _it_ `code` ~~no~~", "- item\n- item\n  - nested\n\n1. one\n2. two\n",
    "word " * 40, "\n" * 9, " " * 17, "=" * 33, "....", "?!?!", "@#$%^&*()", "line one\r\nline two\r\n",
    "Robert Boulter is an English film , television and theatre actor . He had a guest @-@ starring role on the television series The Bill in 2000 .",
]
USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
CHATS = [
    [(USER, "Hi")],
    [(SYSTEM, "Be brief."), (USER, "Hi")],
    [(USER, "Hi"), (ASSISTANT, "Hello!"), (USER, "What is 2+2?")],
    [(SYSTEM, ""), (USER, "")],
    [(SYSTEM, "You are Max."), (USER, "  spaces  \n"), (ASSISTANT, "\n\nlines\n"), (USER, "<b>&amp;</b> {{ x }} {% y %}")],
    [(USER, "\u4f60\u597d \U0001f600"), (ASSISTANT, "\u00e9t\u00e9"), (USER, "Merci")],
]


def values(reader, key):
    return reader.fields[key].contents()


def tokenizer(reader):
    """The tokenizer of SmolLM2: digits one by one, then GPT-2's expression, over bytes."""
    tokens, merges = values(reader, "tokenizer.ggml.tokens"), values(reader, "tokenizer.ggml.merges")
    vocab = {token: index for index, token in enumerate(tokens)}
    whole = tokenizers.Tokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in merges]))
    whole.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    whole.decoder = decoders.ByteLevel()
    kinds = values(reader, "tokenizer.ggml.token_type")
    whole.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == CONTROL])
    return whole


def template(reader):
    source = values(reader, "tokenizer.chat_template")
    # As transformers sets it.
    return jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    encode, render = tokenizer(reader).encode, template(reader).render
    chats = [[dict(role=role, content=content) for role, content in chat] for chat in CHATS]
    stored = dict(
        tokens=[dict(text=text, ids=encode(text, add_special_tokens=False).ids) for text in TEXTS],
        prompts=[dict(messages=chat, prompt=render(messages=chat, add_generation_prompt=True)) for chat in chats],
    )
    lines = lambda items: ",\n".join(json.dumps(item) for item in items)
    STORED.write_text("{\n" + ",\n".join(f'"{name}": [\n{lines(items)}\n]' for name, items in stored.items()) + "\n}\n")
    print(f"{STORED}: {len(TEXTS)} texts, {len(CHATS)} chats")


if __name__ == "__main__":
    main()

"""Requests in llama-server's dialect."""
from .openai import FOLDER, RULES, TURNS, wrong_options
from .requests import Request, each, get, llama, post


def completions():
    return [
        llama("cold"),
        llama("the same again"),
        post("/completions", "its other name", {"prompt": "Once upon a time", "n_predict": 4, "temperature": 0, "seed": 1}),
        llama("stream", stream=True),
        llama("probabilities", n_probs=3, n_predict=3),
        llama("probabilities in a stream", n_probs=2, n_predict=2, stream=True),
        llama("tokens", return_tokens=True),
        llama("tokens in a stream", return_tokens=True, stream=True, n_predict=3),
        llama("its own defaults", temperature=..., seed=5),
        llama("a negative temperature", temperature=-1),
        llama("every sampler", temperature=0.7, top_k=30, top_p=0.9, min_p=0.1, repeat_penalty=1.2, repeat_last_n=16, presence_penalty=0.1, frequency_penalty=0.1, seed=9),
        llama("a stop string", stop=["little"], n_predict=12),
        llama("a stop string in a stream", stop=["little"], n_predict=12, stream=True),
        llama("several prompts", ["Once upon", [332, 275]], n_predict=3),
        llama("two answers", n=2, temperature=0.9, n_predict=3),
        llama("two answers in a stream", n=2, temperature=0.9, n_predict=2, stream=True),
        llama("a large bias", logit_bias=[[41, 1000]], n_predict=2),
        llama("schema", "A folder in JSON:", json_schema=FOLDER, n_predict=40),
        llama("grammar", grammar='start: "yes" | "no"'),
        llama("nothing to generate", n_predict=0),
        llama("out of the cache", cache_prompt=False),
        llama("pinned", RULES, kvik={"pin": True, "priority": 5}),
        *each(llama, "n_predict", "x", -5, 1.5),
        *each(llama, "n_probs", 257, -1, "x"),
        *each(llama, "stream", 1),
        *each(llama, "return_tokens", 1),
        *each(llama, "prompt", ..., [], 5, "", [4096]),
        *wrong_options(llama),
    ]


def helpers():
    return [
        post("/tokenize", "text", {"content": "Hello, <|im_end|> world"}),
        post("/tokenize", "control tokens as text", {"content": "<|im_end|>", "parse_special": False, "add_special": True}),
        post("/tokenize", "pieces", {"content": "Grüße 🦀", "with_pieces": True}),
        post("/tokenize", "an empty text", {"content": ""}),
        *each(lambda name, content: post("/tokenize", name, {} if content is ... else {"content": content}), "content", ..., 5, None, ["x"]),
        post("/tokenize", "add_special = text", {"content": "x", "add_special": "no"}),
        post("/tokenize", "with_pieces = text", {"content": "x", "with_pieces": "no"}),
        post("/tokenize", "too long", {"content": "x" * (1 << 20) + "x"}),
        post("/detokenize", "ids", {"tokens": [332, 275, 917.0]}),
        *each(lambda name, tokens: post("/detokenize", name, {} if tokens is ... else {"tokens": tokens}), "tokens", ..., 5, ["x"], [-1], [4096], [1.5]),
        post("/apply-template", "a conversation", {"messages": TURNS}),
        post("/apply-template", "thinking is off", {"messages": TURNS[:2], "enable_thinking": False}),
        post("/apply-template", "an answer that has begun", {"messages": TURNS[:3]}),
        post("/apply-template", "no messages", {}),
        get("/props"),
        Request("HEAD /health", "HEAD", "/health"),
    ]


def strangers():
    """Routes and methods that there are not."""
    ask = lambda method, path: Request(f"{method} {path}", method, path)
    return [
        get("/nothing"),
        get("/v1/nothing"),
        get("/v1/chat/completions"),
        get("/tokenize"),
        post("/v1/models", "a wrong method", {}),
        post("/v1/assistants", "an API that kvik does not speak", {}),
        ask("DELETE", "/v1/prompts"),
        ask("PATCH", "/v1/cache"),
        ask("PUT", "/metrics"),
        ask("OPTIONS", "/v1/chat/completions"),
    ]

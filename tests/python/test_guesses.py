"""First lines that users of llama-cpp-python, transformers, ollama and openai write: they work, or name the right ones."""
import pytest
from conftest import MODEL, SMALL

import kvik

# Lines that work as they stand.
WORKS = [
    'model.chat("Why is the sky blue?", max_tokens=4).text()',
    'model.chat([{"role": "user", "content": "Why?"}], max_tokens=4).text()',
    'model.chat(messages=[{"role": "user", "content": "Why?"}], max_tokens=4).text()',
    'model.chat({"role": "user", "content": "Why?"}, max_tokens=4).text()',
    'model.generate("Once upon a time", max_tokens=4).text()',
    'model.generate(prompt="Once upon a time", max_tokens=4, stop="x").text()',
    'model.generate("Once upon a time", max_tokens=4, stop=["x", "y"]).text()',
    'model.generate("Once upon a time", max_tokens=4, stop=None, seed=None, temperature=None).text()',
    'model.chat("Hi", max_tokens=4, temperature=0.7, top_p=0.9, top_k=40, presence_penalty=0.5, seed=1).text()',
    'model.chat("Hi", max_tokens=4, temperature=0, frequency_penalty=-0.5, min_p=0.1).text()',
    '"".join(str(piece) for piece in model.chat("Hi", max_tokens=4))',
    '[piece.text for piece in model.chat("Hi", max_tokens=4)]',
    'next(model.chat("Hi", max_tokens=4)).text',
    'model.chat("Hi", reasoning=False, max_tokens=4).text()',
    'kvik.Model(source=MODEL, **SMALL).close()',
]

# Lines that cannot work, the type of their error, and the name that it tells.
TOLD = [
    ('kvik.Llama(model_path="m.gguf")', AttributeError, "kvik.Model(source)"),
    ('kvik.LLM(model="Qwen/Qwen3-0.6B")', AttributeError, "kvik.Model(source)"),
    ('kvik.AutoModelForCausalLM.from_pretrained("m")', AttributeError, "kvik.Model(source)"),
    ('kvik.pipeline("text-generation", model="m")', AttributeError, "kvik.Model(source)"),
    ('kvik.load("m.gguf")', AttributeError, "kvik.Model(source)"),
    ('kvik.chat(model="qwen3", messages=[])', AttributeError, "kvik.Model(source).chat(...)"),
    ('kvik.generate(model="qwen3", prompt="Why?")', AttributeError, "kvik.Model(source).generate(...)"),
    ('kvik.pull("qwen3:0.6b")', AttributeError, "`kvik pull`"),
    ("kvik.Client()", AttributeError, "`openai`"),
    ('kvik.OpenAI(base_url="http://127.0.0.1:8080/v1")', AttributeError, "`openai`"),
    ("kvik.SamplingParams(temperature=0.7)", AttributeError, "temperature=0.7"),
    ('kvik.Model.from_pretrained("Qwen/Qwen3-0.6B")', TypeError, "kvik.Model(source)"),
    ("kvik.Model()", TypeError, "source"),
    ("kvik.Model(model_path=MODEL)", TypeError, "`source`"),
    ("kvik.Model(model=MODEL)", TypeError, "`source`"),
    ("kvik.Model(MODEL, n_ctx=2048)", TypeError, "`context_tokens`"),
    ("kvik.Model(MODEL, max_model_len=2048)", TypeError, "`context_tokens`"),
    ("kvik.Model(MODEL, n_threads=2)", TypeError, "`threads`"),
    ("kvik.Model(MODEL, n_gpu_layers=-1)", TypeError, "processor"),
    ('kvik.Model(MODEL, device_map="auto")', TypeError, "processor"),
    ('kvik.Model(MODEL, torch_dtype="auto")', TypeError, "as the file has them"),
    ('kvik.Model(MODEL, chat_format="chatml")', TypeError, "own files"),
    ("kvik.Model(MODEL, embedding=True)", TypeError, "model.embed(text)"),
    ("kvik.Model(MODEL, verbose=False)", TypeError, "nothing is printed"),
    ("kvik.Model(MODEL, temperature=0.7)", TypeError, "model.chat(messages, temperature=...)"),
    ('kvik.Model(MODEL, cache_dir="/tmp/cache")', TypeError, "`disk_dir`"),
    ('kvik.Model(MODEL, kv_bytes="2GiB")', TypeError, "`kv_bytes` is a whole number"),
    ("kvik.Model(MODEL, thread=2)", TypeError, "`threads`"),
    ("kvik.Model(None)", TypeError, "`source` is a path"),
    ('model("Q: Name the planets. A: ", max_tokens=32, stop=["Q:"], echo=True)', TypeError, "model.generate(text)"),
    ('model.create_chat_completion(messages=[{"role": "user", "content": "Hi"}])', AttributeError, "`chat`"),
    ('model.create_completion("Once")', AttributeError, "`generate`"),
    ('model.create_embedding("Hello")', AttributeError, "`embed`"),
    ('model.encode(["Hello"])', AttributeError, "`embed`"),
    ('model.embed(["Hello", "World"])', TypeError, "[model.embed(text) for text in texts]"),
    ('model.tokenize(b"Hello")', AttributeError, "`tokens`"),
    ("model.detokenize([1, 2])", AttributeError, "`text_of`"),
    ('model.invoke("Hi")', AttributeError, "`chat`"),
    ('model.chat("Hi", max_new_tokens=5)', TypeError, "`max_tokens`"),
    ('model.chat("Hi", num_predict=5)', TypeError, "`max_tokens`"),
    ('model.chat("Hi", max_token=5)', TypeError, "`max_tokens`"),
    ('model.chat("Hi", max_tokens="5")', TypeError, "`max_tokens` is a whole number"),
    ('model.chat("Hi", temperature="hot")', TypeError, "`temperature` is a number"),
    ('model.chat("Hi", reasoning="off")', TypeError, "`reasoning` is True or False"),
    ('model.chat("Hi", stop_loops="false")', TypeError, "`stop_loops` is True or False"),
    ('model.chat("Hi", parallel_tool_calls="no")', TypeError, "`parallel_tool_calls` is True or False"),
    ('model.chat("Hi", max_tokens=2**63)', kvik.InvalidArgumentError, "`max_tokens` is less than 2**63"),
    ('kvik.Model(MODEL, kv_bytes=2**64)', kvik.InvalidArgumentError, "`kv_bytes` is less than 2**63"),
    ('model.chat("Hi", repetition_penalty=0)', kvik.InvalidArgumentError, "`repetition_penalty` must be 0.01 to 100"),
    ('model.chat("\\ud800")', kvik.InvalidArgumentError, "no character of UTF-8"),
    ('model.chat("Hi", stream=True)', TypeError, "every answer is a stream"),
    ('model.chat("Hi", repeat_penalty=1.1)', TypeError, "`repetition_penalty`"),
    ('model.chat("Hi", do_sample=False)', TypeError, "temperature=0"),
    ('model.chat("Hi", stop_sequences=["x"])', TypeError, "`stop`"),
    ('model.chat("Hi", stop=[7])', TypeError, "`stop` is a text"),
    ('model.chat("Hi", response_format={"type": "json_object"})', TypeError, "`json_schema`"),
    ('model.chat("Hi", format="json")', TypeError, "`json_schema`"),
    ('model.chat("Hi", options={"temperature": 0.7})', TypeError, "temperature=0.7"),
    ('model.chat("Hi", think=False)', TypeError, "`reasoning`"),
    ('model.chat("Hi", n=2)', TypeError, "ask several times"),
    ('model.chat("Hi", system="Be brief.")', TypeError, "role `system`"),
    ('model.conversation("trip").say("Hi", max_new_tokens=5)', TypeError, "`max_tokens`"),
    ('model.conversation("trip").ask("Hi")', AttributeError, "`say`"),
    ('model.chat("Hi", max_tokens=1).content', AttributeError, "`.text()`"),
    ('model.chat("Hi", max_tokens=1).choices[0].message.content', AttributeError, "`.text()`"),
    ('model.chat("Hi", max_tokens=1)["message"]["content"]', TypeError, "`.text()`"),
    ('model.chat("Hi", max_tokens=1).usage', AttributeError, "`.report`"),
    ('next(model.chat("Hi", max_tokens=1)).delta', AttributeError, "`text`"),
]


@pytest.fixture(scope="module")
def names():
    with kvik.Model(str(MODEL), **SMALL) as model:
        yield {"kvik": kvik, "model": model, "MODEL": str(MODEL), "SMALL": SMALL}


@pytest.mark.parametrize("line", WORKS)
def test_a_first_line_works(names, line):
    assert eval(line, names) != ""


@pytest.mark.parametrize("line, kind, says", TOLD)
def test_a_first_line_that_cannot_work_names_the_right_one(names, line, kind, says):
    with pytest.raises(kind) as raised:
        eval(line, names)
    assert says in str(raised.value), raised.value


def test_names_that_nobody_guesses_are_missing_as_everywhere(names):
    for owner in (kvik, names["model"], names["model"].chat("Hi", max_tokens=1), kvik.Piece("a"), kvik.Model):
        assert not hasattr(owner, "no_such_name") and not hasattr(owner, "__no_such_name__")
        with pytest.raises(AttributeError, match="no_such_name"):
            owner.no_such_name  # noqa: B018


def test_what_is_public_shows_its_values(names):
    model = names["model"]
    answer = model.chat("Hi", max_tokens=2)
    assert "`.text()`" in repr(answer)
    answer.text()
    assert repr(answer) == "Answer(finish=LENGTH, generated_tokens=2)"
    context = f"context_tokens={model.context_tokens}"
    assert repr(model) == f"Model({str(MODEL)!r}, {context})"
    assert repr(model.conversation("trip")) == "Conversation('trip')"
    assert repr(model.embedding("Hi")).startswith("Embedding(numbers=<256 numbers>, prompt_tokens=")
    assert "temperature=RealSetting(value=0.0, source='family kvik-tiny')" in repr(model.sampling())
    assert "reason=Reason." in repr(answer.report)
    bytes_of = MODEL.read_bytes()
    with kvik.Model(bytes_of, **SMALL) as other:
        assert repr(other) == f"Model(<{len(bytes_of)} bytes>, {context})"
    assert repr(other) == f"Model(<{len(bytes_of)} bytes>, closed)"

"""The package as programs use it: opening, asking, prompts under names, memory, errors."""
import copy
import math
import pickle
import sys
import threading
import time

import numpy
import pytest
from conftest import ENDLESS, MODEL, SMALL

import kvik

ASKED = [{"role": "system", "content": "Be brief."}, kvik.Message("user", "Who are you?")]


def test_an_answer_is_pieces_and_then_a_report(model):
    answer = model.chat(ASKED, max_tokens=12)
    assert answer.report is None
    pieces = list(answer)
    assert all(piece.text and not piece.is_reasoning for piece in pieces)
    report = answer.report
    assert report.finish in (kvik.Finish.END, kvik.Finish.LENGTH) and report.reason == kvik.Reason.FIRST_SEEN
    assert report.cached_tokens + report.computed_tokens == report.prompt_tokens
    assert 0 < report.generated_tokens <= 12
    again = model.chat(ASKED, max_tokens=12)
    assert again.text() == "".join(map(str, pieces)) and again.report.computed_tokens == 1
    assert list(again) == [], "it stays at its end"


def test_a_with_block_that_is_left_cancels_its_answer(model):
    with model.generate("Once upon a time", **ENDLESS) as answer:
        next(answer)
    for _ in answer:
        pass
    assert answer.report.finish == kvik.Finish.CANCELLED and answer.report.generated_tokens < 1500


def test_an_answer_that_nobody_holds_is_cancelled(model):
    with kvik.Model(MODEL, **SMALL, parallel=1) as alone:
        first = alone.generate("Once upon a time", **ENDLESS)
        next(first)
        del first
        alone.generate("A letter", max_tokens=4).text()
        assert alone.stats().generated_tokens < 1500


def test_other_threads_cancel(model):
    answer = model.generate("Once upon a time", **ENDLESS)
    next(answer)
    threading.Timer(0.05, answer.cancel).start()
    for _ in answer:
        pass
    assert answer.report.finish == kvik.Finish.CANCELLED


def test_a_model_that_only_its_answer_holds_goes_on():
    answer = kvik.Model(MODEL, **SMALL).generate("Once upon a time", max_tokens=40, min_tokens=40)
    assert answer.text() and answer.report.generated_tokens == 40


def test_an_answer_that_repeats_itself_ends_where_that_is_asked_for(model):
    loop = {"regex": r"(I am a small model that lives on your phone and answers every question\. ){10}", "temperature": 0}
    ends = lambda answer: (answer.text().count("phone"), answer.report.finish)
    assert ends(model.generate("Who are you?", **loop)) == (10, kvik.Finish.END)
    said, finish = ends(model.generate("Who are you?", **loop, stop_loops=True))
    assert said < 10 and finish == kvik.Finish.LOOP


def test_an_answer_reads_a_part_of_a_long_prompt(model, text):
    answer = model.generate(text, max_tokens=1, retention="h2o:0.5")
    answer.text()
    assert answer.report.reason == kvik.Reason.RETAINED and answer.report.cached_tokens == 0
    with pytest.raises(kvik.InvalidArgumentError, match="`retention` is wrong"):
        model.generate(text, retention="not-a-policy")


def test_threads_share_a_model(model):
    expect = model.generate("A letter came in winter, and", max_tokens=16).text()
    said = []
    asking = [
        threading.Thread(target=lambda: said.append(model.generate("A letter came in winter, and", max_tokens=16).text()))
        for _ in range(8)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert said == [expect] * 8


def test_vectors_are_read_where_they_are(model):
    embedding = model.embedding("A garden")
    vector = model.embed("A garden")
    assert vector.dtype == numpy.float32 and vector.shape == (256,) and not vector.flags.owndata
    assert numpy.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    assert embedding.numbers.tolist() == vector.tolist() and embedding.cached_tokens == 0
    assert numpy.shares_memory(embedding.vector, numpy.asarray(embedding.numbers))


def test_kept_prompts_are_warm_for_the_next_one_who_opens(tmp_path):
    system = [kvik.Message("system", "You sort notifications: now, later or never.")]
    with kvik.Model(MODEL, **SMALL, disk_dir=tmp_path) as model:
        assert model.is_kept("notify", system) == kvik.KeptState(is_known=False)
        kept = model.keep_prompt("notify", system)
        assert kept.is_known and kept.is_warm and not kept.is_changed and kept.tokens == kept.ram_tokens > 1
        assert model.is_kept("notify", ASKED).is_changed
        assert model.on_background().unwritten_blocks == 0
    with kvik.Model(MODEL, **SMALL, disk_dir=tmp_path) as model:
        assert model.is_kept("notify", system).is_warm
        assert model.forget_prompt("notify") and not model.forget_prompt("notify")


def test_a_prompt_is_counted_and_kept_as_an_answer_with_its_options_reads_it(model):
    counts = []
    for options in ({}, {"reasoning": False}):
        counts.append(model.count_tokens(ASKED, **options))
        assert model.explain(ASKED, **options).prompt_tokens == counts[-1]
        answer = model.chat(ASKED, max_tokens=1, **options)
        answer.text()
        assert answer.report.prompt_tokens == counts[-1]
    assert counts[0] < counts[1], "thoughts that are over begin the answer"
    for call in (model.keep_prompt, model.is_kept):
        with pytest.raises(kvik.InvalidArgumentError, match="tools"):
            call("notify", ASKED, tools=[{}])
    with pytest.raises(kvik.InvalidArgumentError, match="tools"):
        model.logits(ASKED, tools=[{}])
    with pytest.raises(TypeError, match="keep_prompt has no argument `think`: use `reasoning`"):
        model.keep_prompt("notify", ASKED, think=False)


def test_tokens_are_biased(model):
    [token, *_] = model.tokens(" river")
    said = [model.generate("Once upon a time", max_tokens=1, logit_bias={token: bias}).text() for bias in (1e9, -math.inf)]
    assert said[0] == model.text_of([token]) != said[1]
    for wrong in ([7], {"7": 1}, {7: "1"}):
        with pytest.raises(TypeError, match="`logit_bias` has a number for each token"):
            model.generate("Once", logit_bias=wrong)
    for wrong in ({-1: 0}, {1 << 31: 0}, {7: math.nan}, {7: 1e10}):
        with pytest.raises(kvik.InvalidArgumentError, match="`logit_bias`"):
            model.generate("Once", logit_bias=wrong)


def test_models_share_a_directory(tmp_path, text):
    folders = {"disk_dir": tmp_path / "cache", "conversations_dir": tmp_path / "said"}
    with kvik.Model(MODEL, **SMALL, **folders) as first, kvik.Model(MODEL, **SMALL, **folders) as second:
        first.generate(text, max_tokens=1).text()
        assert first.on_background().unwritten_blocks == 0
        deadline = time.monotonic() + 20
        while second.explain(text).disk_tokens == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        first.conversation("trip").say("Where is the station?", max_tokens=2).text()
        assert len(second.conversation("trip").messages()) == 2


def test_memory_is_released_and_numbers_say_so(model, text):
    model.generate(text, max_tokens=1).text()
    before = model.stats()
    released = model.on_memory_pressure(kvik.MemoryPressure.CRITICAL)
    after = model.stats()
    assert before.kv_cached_bytes == released.evicted_bytes > 0 and after.kv_cached_bytes == 0
    explained = model.explain(text)
    assert explained.reason == kvik.Reason.EVICTED and explained.known_tokens == 0
    assert explained.prompt_tokens == model.count_tokens(text) and explained.stopped_at


def test_a_model_comes_from_bytes_and_from_a_part_of_a_file(tmp_path):
    assets = tmp_path / "assets"
    assets.write_bytes(b"before" + MODEL.read_bytes() + b"behind")
    with assets.open("rb") as file:
        part = kvik.FilePart(file.fileno(), offset=6, bytes=MODEL.stat().st_size)
        opened = [kvik.Model(source, **SMALL) for source in (MODEL, str(MODEL), MODEL.read_bytes(), part)]
    texts = {model.generate("Once upon a time", max_tokens=8).text() for model in opened}
    assert len(texts) == 1 and texts.pop()


def test_every_failure_has_its_type_and_says_what_helps(model):
    def check(kind, says, call, *arguments, **options):
        with pytest.raises(kind, match=says) as raised:
            call(*arguments, **options)
        assert isinstance(raised.value, kvik.Error)

    check(kvik.ModelError, "nowhere.gguf", kvik.Model, "/nowhere.gguf")
    check(FileNotFoundError, "nowhere.gguf", kvik.Model, "/nowhere.gguf")
    check(kvik.OutOfMemoryError, "kv_bytes", kvik.Model, MODEL, kv_bytes=7)
    check(kvik.DiskError, None, kvik.Model, MODEL, disk_dir="/dev/null")
    check(kvik.InvalidArgumentError, "threads", kvik.Model, MODEL, threads=-1)
    check(kvik.InvalidArgumentError, "descriptor", kvik.Model, kvik.FilePart(-1))
    check(kvik.PromptTooLongError, "context_tokens", model.generate, "word " * 9000)
    check(kvik.PromptTooLongError, "at least", model.chat, "word " * 200_000)
    check(kvik.RequestError, None, model.embed, "")
    check(kvik.InvalidArgumentError, "temperature", model.generate, "a", temperature=-1.0)
    check(kvik.InvalidArgumentError, "seed", model.generate, "a", seed=-1)
    check(kvik.InvalidArgumentError, "robot", model.chat, [{"role": "robot", "content": "a"}])
    check(kvik.InvalidArgumentError, "role", model.chat, [{"content": "a"}])
    check(kvik.InvalidArgumentError, "function", model.chat, [{"role": "assistant", "tool_calls": [{"id": "1"}]}])
    with pytest.raises(TypeError, match="colour"):
        model.generate("a", colour="red")


ERRORS = [kind for kind in vars(kvik).values() if isinstance(kind, type) and issubclass(kind, kvik.Error)]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_is_pickled_and_copied(kind):
    error = kind("story.gguf")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind and (str(again), again.args) == (str(error), error.args)
    assert "story.gguf" in str(error) and len(ERRORS) > 10


def test_answers_are_sampled_as_recommended_and_settings_come_before_it(model):
    sampling = model.sampling()
    assert (sampling.temperature.value, sampling.temperature.source) == (0, "family kvik-tiny")
    assert (sampling.top_k.value, sampling.top_p.value, sampling.top_p.source) == (40, 0.95, "kvik")
    assert model.sampling(reasoning=False) == sampling
    asked = {"prompt": "Once upon a time", "max_tokens": 16}
    greedy = model.generate(**asked).text()
    assert greedy == model.generate(**asked, temperature=0).text()
    hot = [model.generate(**asked, temperature=2, top_k=0, top_p=1, min_p=0).text() for _ in range(4)]
    assert len(set(hot)) > 1, "a seed that is not set is random"
    drawn = {**asked, "temperature": 2, "seed": 7}
    assert model.generate(**drawn).text() == model.generate(**drawn, top_k=40, top_p=0.95, min_p=0.05).text() != greedy


def test_what_is_no_message_is_told_what_is_one(model):
    for wrong in (7, None, [7], ["Hello"], [None], [[]]):
        for call in (model.chat, model.conversation("wrong").say):
            with pytest.raises(TypeError, match="kvik.Message"):
                call(wrong)
    with pytest.raises(TypeError, match="`content` of a message is a text"):
        model.chat([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
    for name in ("reasoning_content", "reasoning"):
        with pytest.raises(TypeError, match="a message holds no reasoning"):
            model.chat([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!", name: "Hm."}])


def test_a_developer_is_the_system(model):
    asked = {"role": "user", "content": "Who are you?"}
    said = [model.chat([{"role": role, "content": "Be brief."}, asked], max_tokens=8) for role in ("system", "developer")]
    assert said[0].text() == said[1].text()


def test_a_text_is_a_message_of_the_user(model):
    expect = model.chat([kvik.Message("user", "Who are you?")], max_tokens=8).text()
    for said in ("Who are you?", kvik.Message("user", "Who are you?"), {"role": "user", "content": "Who are you?"}):
        assert model.chat(said, max_tokens=8).text() == expect
    named = model.conversation("named")
    assert named.say("Who are you?", max_tokens=8).text() == expect and named.messages()[0].content == "Who are you?"


def test_what_is_shown_has_its_fields(model):
    answer = model.chat("Who are you?", max_tokens=4)
    answer.text()
    shown = [model.stats(), answer.report, model.explain("Who"), model.on_memory_pressure(kvik.MemoryPressure.CRITICAL)]
    for record in shown + [kvik.MemoryOptions(), kvik.Flushed(is_idle=True, unwritten_blocks=0)]:
        assert repr(record) == str(record) and "=" in repr(record), repr(record)
        assert record == type(record)(**vars(record)) and record != "" and record != kvik.KeptState(is_known=False)
    assert "running=" in repr(model.stats()) and "Reason." in repr(kvik.Reason.EVICTED)


def test_without_numpy_it_is_said_how_to_get_it(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    for call in (lambda: model.embed("a"), lambda: model.logits("a"), lambda: model.embedding("a").vector):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'kvik\[numpy\]'") as raised:
            call()
        assert raised.value.name == "numpy"
    assert len(model.embedding("a").numbers) == 256


def test_the_package_has_a_version():
    assert kvik.__version__[0].isdigit() and "." in kvik.__version__ or kvik.__version__ == "0+unknown"


def test_a_model_is_closed_once_and_then_says_so(model):
    answer = model.generate("Once upon a time", **ENDLESS)
    assert model.close() is not None and model.close() is None
    with pytest.raises(kvik.ClosedError):
        model.count_tokens("a")
    for _ in answer:
        pass
    assert answer.report.finish == kvik.Finish.CANCELLED

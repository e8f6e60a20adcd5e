"""What the comparison with OpenVINO GenAI computes itself, without either engine: pytest bench/retain/openvino_test.py."""
import pytest

import openvino_compare
import openvino_kvik
from openvino_cases import Case, rendered
from openvino_peer import Eviction


def case(expected="Cork", tokens=3):
    messages = (("user", "I go to Cork."), ("assistant", "Okay."), ("user", "Where do I go?"))
    return Case("recall", messages, expected, tuple(range(tokens)))


def test_an_answer_is_right_when_it_names_the_value_in_any_case():
    assert case().right("you go to CORK.")
    assert not case().right("You go to Bath.")
    assert not case().right(None)


def test_a_prompt_is_rendered_as_the_chat_template_does():
    assert rendered((("user", "Hi"),)) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_an_eviction_is_read_from_its_text():
    assert Eviction.parse("norm_sum:256") == Eviction("norm_sum", 256)
    text = "sum:512,start=64,recent=128,window=1,rotate,crush=2,anchor=ones"
    assert Eviction.parse(text) == Eviction("sum", 512, 64, 128, 1, True, 2, "ones")


def test_an_unknown_setting_of_an_eviction_is_an_error():
    with pytest.raises(TypeError, match="depth"):
        Eviction.parse("sum:512,depth=3")


def test_every_setting_that_is_tried_can_be_read():
    tried = [Eviction.parse(text.format(tokens=256)) for text in openvino_compare.tried()]
    assert len(set(tried)) == len(tried)
    assert all(each.start + each.recent + each.crush * 32 < 256 for each in tried)


def test_only_a_prompt_that_is_too_long_counts_as_refused():
    assert openvino_kvik.refused(400, "the prompt is longer than the context of 256 tokens") is None
    with pytest.raises(SystemExit, match="500"):
        openvino_kvik.refused(500, "context")
    with pytest.raises(SystemExit, match="retain"):
        openvino_kvik.refused(400, "`kvik.retain` is not known")


def test_streams_that_overlap_are_counted_where_each_begins():
    assert openvino_kvik.overlaps([(0, 4), (1, 2), (3, 5)]) == [1, 2, 2]
    assert openvino_kvik.overlaps([]) == []


def test_answers_that_do_not_come_are_counted_as_such():
    asked = [case(tokens=10), case(tokens=20), case(tokens=30)]
    assert openvino_compare.counted(asked, ["Cork", "Bath", None]) == ("1 of 3", "2", "20")
    assert openvino_compare.counted(asked, [None] * 3) == ("0 of 3", "0", "0")


def test_a_row_says_what_each_setting_answered(capsys, monkeypatch):
    monkeypatch.setattr(openvino_compare, "cases", lambda task, every: [case(tokens=10), case("Bath", tokens=20)])
    args = type("Args", (), {"every": 1, "settings": {"echo": ["good:{tokens}", "short:{tokens}"]}})
    openvino_compare.rows(args, [Echo()], 256, strict=True)
    good, short = capsys.readouterr().out.splitlines()
    assert good == "| 256 | echo | `good:256` | 288 tokens | 2 of 2 | 2 | 20 | 2 of 2 | 2 | 20 |"
    assert short == "| 256 | echo | `short:256` | 288 tokens | 1 of 2 | 1 | 10 | 1 of 2 | 1 | 10 |"


class Echo:
    """An engine that knows every answer; `short` takes prompts of at most 10 tokens."""

    name = "echo"

    def open(self, retain, pool_bytes):
        assert pool_bytes == 288 * 3072
        return Opened(10 if retain.startswith("short") else 100)


class Opened:
    def __init__(self, limit):
        self.limit = limit

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def answer(self, case):
        return case.expected if len(case.tokens) <= self.limit else None

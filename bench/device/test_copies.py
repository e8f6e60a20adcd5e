"""What `copies.py` makes of the rows of a bench."""
import xml.dom.minidom

import pytest

from copies import COPIED, STAY, TOKENS, formula, picture, round_end, summary, table

BLOCK_BYTES = 49_152


def blocks(depth):
    """Copied by `TOKENS` steps behind a depth of whole blocks: those before the row, and its own."""
    return sum(-(-(depth + token) // 16) + 1 for token in range(TOKENS))


def row(depth, resident, speed):
    moved = blocks(depth) * BLOCK_BYTES if resident == COPIED else 0
    return dict(n_depth=depth, kv_resident=resident, avg_ts=speed, kv_bytes_moved=moved, kv_bytes_formula=moved, device="a <GPU>")


def measured():
    rows = [row(depth, resident, speed) for depth in (4096, 1024) for resident, speed in ((STAY, 40.0), (COPIED, 20.0), (COPIED, 30.0))]
    return dict(machine="a processor", rows=rows)


def test_rows_are_summed_up_by_depth():
    lines = summary(measured())
    assert [line["depth"] for line in lines] == [1024, 4096]
    assert lines[0]["speed"] == {STAY: 40.0, COPIED: 25.0}
    assert f"| 1,024 | 40.0 | 25.0 | {blocks(1024) * BLOCK_BYTES:,} |" in table(lines)


@pytest.mark.parametrize("which", (STAY, COPIED))
def test_bytes_that_are_not_those_of_the_formula_fail(which):
    broken = measured()
    next(row for row in broken["rows"] if row["kv_resident"] == which)["kv_bytes_moved"] += 16
    with pytest.raises(AssertionError):
        summary(broken)


def test_the_line_of_the_formula_goes_through_what_was_measured():
    lines = summary(measured())
    assert [formula(lines, line["depth"]) for line in lines] == [line["moved"] for line in lines]
    lines[1]["formula"] += BLOCK_BYTES
    with pytest.raises(AssertionError):
        formula(lines, 0)


def test_the_picture_has_a_dot_for_each_number_and_hostile_names_are_text():
    lines = summary(measured())
    drawn = xml.dom.minidom.parseString(picture(measured(), lines, "a <GPU>"))
    assert len(drawn.getElementsByTagName("circle")) == 2 * 2 * len(lines)
    assert len(drawn.getElementsByTagName("polyline")) == 3
    words = [text.firstChild.data for text in drawn.getElementsByTagName("text")]
    assert "a <GPU>; a processor" in words and "4,096" in words


def test_axes_end_at_or_behind_their_largest_value():
    for value in (0.5, 1, 4, 9.9, 10, 73.2, 399.9, 999, 14_000):
        assert value <= round_end(value) <= 2 * value

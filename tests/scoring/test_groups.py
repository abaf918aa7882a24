"""Groups of sentences: each row once, under bounds that can be read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nmt.scoring.groups import LENGTHS, grouped


def test_counts_fall_into_the_groups_of_a_hand_made_table() -> None:
    found = grouped([7, 0, 5, 6, 1, 60, 51, 50, 31], LENGTHS)
    assert [(group.label, group.rows) for group in found] == [
        ("0", (1,)),
        ("1 to 5", (2, 4)),
        ("6 to 10", (0, 3)),
        ("31 to 50", (7, 8)),
        ("51 or more", (5, 6)),
    ]


def test_a_group_of_one_count_is_labelled_with_it() -> None:
    assert [group.label for group in grouped([0, 1, 2], (1, 4))] == ["0", "1", "2 to 4"]


def test_nothing_is_in_no_group() -> None:
    assert grouped([], LENGTHS) == []


@given(st.lists(st.integers(0, 200)))
def test_every_row_is_in_one_group_within_its_bounds(counts: list[int]) -> None:
    found = grouped(counts, LENGTHS)
    assert sorted(row for group in found for row in group.rows) == list(range(len(counts)))
    for group in found:
        first, *_, last = group.label.replace(" or more", " to 1000").split(" to ") * 2
        assert all(int(first) <= counts[row] <= int(last) for row in group.rows)

"""The spool: text as numbers of distinct tokens, on disk, and back as often as needed."""

from __future__ import annotations

import io
from collections import Counter

import numpy as np

from nmt.data.dataset import Ragged, Split
from nmt.data.spool import Spool, Types
from nmt.data.vocabulary import WordVocabulary

LINES = [["▁a", "▁b", "▁a"], [], ["▁c"]]


def rows(ragged: Ragged) -> list[list[int]]:
    return [ragged[i].tolist() for i in range(len(ragged))]


def test_tokens_are_numbered_as_they_come_and_keep_their_numbers() -> None:
    types = Types()
    assert rows(types.number(LINES)) == [[0, 1, 0], [], [2]]
    assert rows(types.number([["▁d", "▁b"]])) == [[3, 1]]
    assert len(types) == 4


def test_tokens_are_counted_over_all_parts_and_those_of_other_text_are_left_out() -> None:
    types = Types()
    parts = [types.number(LINES), types.number([["▁b"]])]
    types.number([["▁elsewhere"]])
    assert types.count(parts) == Counter({"▁a": 2, "▁b": 2, "▁c": 1})
    assert "▁elsewhere" not in types.count(parts)


def test_text_spelt_by_its_types_is_what_the_vocabulary_encodes() -> None:
    types = Types()
    numbered = types.number(LINES)
    vocabulary = WordVocabulary(["<unk>", "<pad>", "<bos>", "<eos>", "▁c", "▁a"])
    spelt = numbered.spelt(types.encode(vocabulary))
    assert rows(spelt) == [vocabulary.encode(line) for line in LINES]
    assert spelt.ids.dtype == np.uint16


def test_parts_come_back_in_order_as_often_as_asked_for_also_in_turns() -> None:
    types, spool = Types(), Spool(io.BytesIO())
    parts = [Split("a", types.number(LINES[:i]), types.number(LINES[i:])) for i in range(4)]
    spool.write("a", iter(parts))
    spool.write("b", iter(parts[:1]))
    for _ in range(2):
        found = zip(parts, spool.read("a"), spool.read("a"), strict=True)
        for expected, *twins in found:
            for part in twins:
                assert (rows(part.src), rows(part.tgt)) == (rows(expected.src), rows(expected.tgt))
    assert [part.name for part in spool.read("b")] == ["b"]

"""Training pairs by epoch: what is drawn, how often, from which distribution, and that it can be repeated."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from nmt.config import Config
from nmt.data import sampling
from nmt.data.dataset import PreparedData, Ragged, Split
from nmt.data.sampling import cut_anew, find_cuts, training_pairs
from nmt.data.vocabulary import UNK, SubwordVocabulary, WordVocabulary, build_subword_vocabulary
from nmt.prepare import prepare

ROOT = Path(sampling.__file__).parents[2]
SIDES = ("src", "tgt")

Words = list[tuple[int, ...]]


def digest(split: Split) -> str:
    arrays = (split.src.ids, split.src.offsets, split.tgt.ids, split.tgt.offsets)
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def side_of(split: Split, side: str) -> Ragged:
    return split.src if side == "src" else split.tgt


def sentences(side: Ragged) -> list[list[int]]:
    return [side[row].tolist() for row in range(len(side))]


def stored_words(data: PreparedData, side: str) -> list[Words]:
    """Each sentence as words, each word as its ids."""
    ragged, starts = side_of(data.split("train"), side), data.word_starts("train", side)
    rows = []
    for begin, end in pairwise(ragged.offsets.tolist()):
        cuts = [i for i in range(begin, end) if starts[i]] + [end]
        rows.append([tuple(ragged.ids[a:b].tolist()) for a, b in pairwise(cuts)])
    return rows


def in_words(pieces: Sequence[str], ids: list[int], words: Words) -> Words:
    """A sentence cut anew, as words: each takes the pieces that spell it, and none reaches into the next."""
    rest, found = iter(ids), []
    for word in words:
        text, cut, spelt = "".join(pieces[i] for i in word), [], ""
        while len(spelt) < len(text):
            cut.append(next(rest))
            spelt += pieces[cut[-1]]
        assert spelt == text
        found.append(tuple(cut))
    assert next(rest, None) is None
    return found


def segmentations(text: str, ids: dict[str, int]) -> Iterator[tuple[int, ...]]:
    """Every way to write `text` as known pieces."""
    if not text:
        yield ()
    for end in range(1, len(text) + 1):
        if text[:end] in ids:
            for rest in segmentations(text[end:], ids):
                yield (ids[text[:end]], *rest)


@pytest.fixture(scope="module")
def tiny_vocabulary() -> SubwordVocabulary:
    counts = Counter({"▁ab": 20, "▁aba": 9, "▁abab": 8, "▁ba": 15, "ab": 5, "▁b": 4, "▁aabb": 3})
    return build_subword_vocabulary(counts + Counter("<unk>"), size=19)


def text_of(words: Sequence[str], vocabulary: SubwordVocabulary, per_row: int) -> tuple[Ragged, np.ndarray]:
    """A side of `per_row` words a sentence, and which ids open a word."""
    cuts = [vocabulary.encode([word]) for word in words]
    rows = [
        [i for cut in cuts[start : start + per_row] for i in cut] for start in range(0, len(words), per_row)
    ]
    starts = np.array([place == 0 for cut in cuts for place in range(len(cut))])
    return Ragged.of(rows, len(vocabulary)), starts


# the same again


def test_an_epoch_is_a_pure_function_of_the_seed_and_its_number(tiny_prepared: PreparedData) -> None:
    def epochs(seed: int, order: Sequence[int]) -> dict[int, str]:
        pairs = training_pairs(
            tiny_prepared, subword_dropout=0.3, word_dropout=0.1, rare_words=0.3, seed=seed
        )
        return {epoch: digest(pairs(epoch)) for epoch in order}

    upward, downward, alone = epochs(1, [0, 1, 2, 3]), epochs(1, [3, 2, 2, 1, 0]), epochs(1, [2])
    assert upward == downward
    assert alone[2] == upward[2]
    others = epochs(2, range(4)) | {epoch + 10: text for epoch, text in epochs(2**63 - 1, range(4)).items()}
    assert len({*upward.values(), *others.values()}) == 12


def test_numpys_global_generator_and_sentencepieces_play_no_part(tiny_prepared: PreparedData) -> None:
    digests = set()
    for seed in (1, 2):
        np.random.seed(seed)
        sentencepiece.set_random_generator_seed(seed)
        pairs = training_pairs(tiny_prepared, subword_dropout=0.3, word_dropout=0.1, rare_words=0.0, seed=1)
        digests.add(digest(pairs(0)))
    assert len(digests) == 1


def test_processes_draw_the_same_whatever_the_hash_seed_and_threads_and_need_no_tokeniser(
    tiny_prepared: PreparedData,
) -> None:
    code = (
        "import hashlib, sys; from pathlib import Path\n"
        "from nmt.data.dataset import open_prepared; from nmt.data.sampling import training_pairs\n"
        "data = open_prepared(Path(sys.argv[1]))\n"
        "training_pairs(data, subword_dropout=0.0, word_dropout=0.2, rare_words=0.0, seed=5)(3)\n"
        "assert not {'spacy', 'torchtext', 'torch', 'sentencepiece'} & set(sys.modules)\n"
        "split = training_pairs(data, subword_dropout=0.5, word_dropout=0.2, rare_words=0.3, seed=5)(3)\n"
        "assert not {'spacy', 'torchtext', 'torch'} & set(sys.modules)\n"
        "arrays = split.src.ids, split.src.offsets, split.tgt.ids, split.tgt.offsets\n"
        "print(hashlib.sha256(b''.join(a.tobytes() for a in arrays)).hexdigest())\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code, str(tiny_prepared.folder)],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": number, "OMP_NUM_THREADS": number},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for number in ("1", "2")
    }
    here = training_pairs(tiny_prepared, subword_dropout=0.5, word_dropout=0.2, rare_words=0.3, seed=5)(3)
    assert answers == {digest(here)}


def test_without_dropout_every_epoch_is_the_stored_split_itself(tiny_prepared: PreparedData) -> None:
    pairs = training_pairs(tiny_prepared, subword_dropout=0.0, word_dropout=0.0, rare_words=0.0, seed=1)
    assert pairs(0) is pairs(7)
    assert digest(pairs(0)) == digest(tiny_prepared.split("train"))


# subwords


def test_every_sentence_cut_anew_spells_the_same_words_without_unk(tiny_prepared: PreparedData) -> None:
    pairs = training_pairs(tiny_prepared, subword_dropout=1.0, word_dropout=0.0, rare_words=0.0, seed=3)
    split = pairs(0)
    assert split.name == "train"
    for side, vocabulary in zip(
        SIDES, (tiny_prepared.src_vocabulary, tiny_prepared.tgt_vocabulary), strict=True
    ):
        stored, drawn = side_of(tiny_prepared.split("train"), side), side_of(split, side)
        assert drawn.ids.dtype == stored.ids.dtype
        assert len(drawn) == len(stored)
        assert drawn.ids.min() > 3
        assert (drawn.lengths > stored.lengths).mean() > 0.9
        for ids, words in zip(sentences(drawn), stored_words(tiny_prepared, side), strict=True):
            in_words(vocabulary.pieces, ids, words)


@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_the_asked_share_of_the_words_that_can_be_cut_otherwise_is(
    share: float, tiny_prepared: PreparedData
) -> None:
    pairs = training_pairs(tiny_prepared, subword_dropout=share, word_dropout=0.0, rare_words=0.0, seed=1)
    splits = [pairs(epoch) for epoch in range(3)]
    for side, vocabulary in zip(
        SIDES, (tiny_prepared.src_vocabulary, tiny_prepared.tgt_vocabulary), strict=True
    ):
        ids_of = {piece: i for i, piece in enumerate(vocabulary.pieces)}
        rows = stored_words(tiny_prepared, side)
        distinct = {word for words in rows for word in words}
        texts = {word: "".join(vocabulary.pieces[i] for i in word) for word in distinct}
        can = {
            word: sum(1 for _, _ in zip(segmentations(texts[word], ids_of), "ab", strict=False)) == 2
            for word in distinct
        }
        changed = [
            new != old
            for split in splits
            for ids, words in zip(sentences(side_of(split, side)), rows, strict=True)
            for new, old in zip(in_words(vocabulary.pieces, ids, words), words, strict=True)
            if can[old]
        ]
        sigma = math.sqrt(share * (1 - share) / len(changed))
        assert abs(np.mean(changed) - share) <= 4 * sigma


def test_cuts_are_drawn_as_the_unigram_model_weighs_them(tiny_vocabulary: SubwordVocabulary) -> None:
    texts, draws, share = ("▁aba", "▁abab", "▁b", "▁aabb"), 8000, 0.5
    side, starts = text_of(texts * draws, tiny_vocabulary, per_row=len(texts))
    cuts = find_cuts(side, starts, tiny_vocabulary)
    drawn = sentences(cut_anew(cuts, share, 100, np.random.default_rng(4)))

    model = sentencepiece.SentencePieceProcessor(model_proto=tiny_vocabulary.model)
    ids_of = {piece: i for i, piece in enumerate(tiny_vocabulary.pieces) if i > 3}
    stored = [tuple(tiny_vocabulary.encode([text])) for text in texts]
    found = [Counter(column) for column in zip(*(
        in_words(tiny_vocabulary.pieces, ids, stored) for ids in drawn
    ), strict=True)]  # fmt: skip
    for text, best, counts in zip(texts, stored, found, strict=True):
        others = [cut for cut in segmentations(text, ids_of) if cut != best]
        weights = [math.exp(sampling.ALPHA * sum(map(model.get_score, cut))) for cut in others]
        expected = {best: 1 - share} if others else {best: 1.0}
        expected |= {cut: share * w / sum(weights) for cut, w in zip(others, weights, strict=True)}
        assert counts.keys() <= expected.keys()
        for cut, probability in expected.items():
            sigma = math.sqrt(probability * (1 - probability) / draws)
            assert abs(counts[cut] / draws - probability) <= 4 * sigma, (text, cut)
    assert max(map(len, found)) > 5


def test_a_word_that_holds_unk_or_has_but_one_cut_stays(tiny_vocabulary: SubwordVocabulary) -> None:
    texts = ["▁axb", "a", "x", "▁abab"] * 50
    side, starts = text_of(texts, tiny_vocabulary, per_row=4)
    drawn = cut_anew(find_cuts(side, starts, tiny_vocabulary), 1.0, 100, np.random.default_rng(1))
    fixed = [i for text in texts[:3] for i in tiny_vocabulary.encode([text])]
    assert UNK in fixed
    for ids in sentences(drawn):
        assert ids[: len(fixed)] == fixed
        assert ids[len(fixed) :] != tiny_vocabulary.encode(["▁abab"])


def test_a_sentence_that_would_outgrow_the_limit_stays_as_it_is(tiny_prepared: PreparedData) -> None:
    stored = tiny_prepared.split("train")
    limit = int(max(stored.src.lengths.max(), stored.tgt.lengths.max()))
    settings = {**tiny_prepared.manifest.settings}
    settings["data"] = {**settings["data"], "max_tokens": limit}
    narrow = dataclasses.replace(
        tiny_prepared, manifest=dataclasses.replace(tiny_prepared.manifest, settings=settings)
    )
    free, held = (
        training_pairs(data, subword_dropout=0.5, word_dropout=0.0, rare_words=0.0, seed=1)(0)
        for data in (tiny_prepared, narrow)
    )
    for side in SIDES:
        was, without, within = (side_of(split, side) for split in (stored, free, held))
        too_long = without.lengths > limit
        assert 0 < too_long.sum() < len(was)
        assert within.lengths.max() <= limit
        for row in range(len(was)):
            expected = was if too_long[row] else without
            assert within[row].tolist() == expected[row].tolist()


def test_words_of_a_vocabulary_of_words_are_not_cut(tiny_prepared: PreparedData) -> None:
    words = WordVocabulary(tiny_prepared.src_vocabulary.pieces)
    stored = tiny_prepared.split("train")
    for side, other in (("src", "tgt"), ("tgt", "src")):
        data = dataclasses.replace(tiny_prepared, **{f"{side}_vocabulary": words})
        split = training_pairs(data, subword_dropout=0.5, word_dropout=0.0, rare_words=0.0, seed=1)(0)
        assert np.array_equal(side_of(split, side).ids, side_of(stored, side).ids)
        assert len(side_of(split, other).ids) > len(side_of(stored, other).ids)


# rare words


@pytest.mark.parametrize("kind", ["subword", "word"])
def test_rare_words_stand_in_more_sentences_a_word_at_a_time(kind: str, tiny_prepared: PreparedData) -> None:
    data = tiny_prepared
    if kind == "word":
        words = WordVocabulary(data.src_vocabulary.pieces)
        data = dataclasses.replace(data, src_vocabulary=words, tgt_vocabulary=words)
    pairs = training_pairs(data, subword_dropout=0.0, word_dropout=0.0, rare_words=0.2, seed=1)
    stored = data.split("train")
    changed = [
        {
            row
            for row, (now, before) in enumerate(zip(sentences(drawn), sentences(was), strict=True))
            if now != before
        }
        for drawn, was in ((pairs(0).src, stored.src), (pairs(0).tgt, stored.tgt))
    ]
    assert all(changed)
    assert len(changed[0] | changed[1]) <= 0.2 * len(stored)
    assert digest(pairs(1)) != digest(pairs(0))
    for side in SIDES:
        drawn, was = side_of(pairs(0), side), side_of(stored, side)
        assert drawn.ids.dtype == was.ids.dtype
        assert set(drawn.ids.tolist()) <= set(was.ids.tolist())


def test_rare_words_are_cut_anew_like_all_others(tiny_prepared: PreparedData) -> None:
    whole, cut = (
        training_pairs(tiny_prepared, subword_dropout=share, word_dropout=0.0, rare_words=0.3, seed=1)(0)
        for share in (0.0, 0.99)
    )
    for side, vocabulary in zip(
        SIDES, (tiny_prepared.src_vocabulary, tiny_prepared.tgt_vocabulary), strict=True
    ):
        texts = [
            ["".join(vocabulary.pieces[i] for i in ids) for ids in sentences(side_of(split, side))]
            for split in (whole, cut)
        ]
        assert texts[0] == texts[1]
        assert len(side_of(cut, side).ids) > len(side_of(whole, side).ids)


def test_a_text_without_rare_words_stays_as_it_is_and_nothing_is_said_of_them(
    tiny_config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("train", "val"):
        (tmp_path / f"{name}.de").write_text("Ein Hund läuft.\n" * 40, "utf-8")
        (tmp_path / f"{name}.en").write_text("A dog runs.\n" * 40, "utf-8")
    config = tiny_config.replace(
        data=tiny_config.data.model_copy(update={"source": str(tmp_path)}),
        vocabulary=tiny_config.vocabulary.model_copy(update={"kind": "word"}),
    )
    data = prepare(config, out=tmp_path / "data").data
    with caplog.at_level(logging.INFO):
        pairs = training_pairs(data, subword_dropout=0.0, word_dropout=0.0, rare_words=0.5, seed=1)
        assert digest(pairs(0)) == digest(data.split("train"))
    assert "rare words" not in caplog.text


# source tokens


@pytest.mark.parametrize("subword_dropout", [0.0, 0.4])
def test_the_asked_share_of_source_tokens_is_unknown_and_all_else_as_without(
    subword_dropout: float, tiny_prepared: PreparedData
) -> None:
    share = 0.15
    without, with_ = (
        training_pairs(
            tiny_prepared, subword_dropout=subword_dropout, word_dropout=rate, rare_words=0.0, seed=1
        )
        for rate in (0.0, share)
    )
    hidden = []
    for epoch in range(4):
        plain, dropped = without(epoch), with_(epoch)
        assert dropped.src.ids.dtype == plain.src.ids.dtype
        assert np.array_equal(dropped.src.offsets, plain.src.offsets)
        assert np.array_equal(dropped.tgt.ids, plain.tgt.ids)
        assert np.array_equal(dropped.tgt.offsets, plain.tgt.offsets)
        unknown = dropped.src.ids != plain.src.ids
        assert (dropped.src.ids[unknown] == UNK).all()
        hidden.append(unknown)
    sigma = math.sqrt(share * (1 - share) / sum(map(len, hidden)))
    assert abs(np.concatenate(hidden).mean() - share) <= 4 * sigma
    stored = tiny_prepared.split("train")
    assert UNK not in stored.src.ids  # nothing was written into the stored ids


# extra pairs


@pytest.fixture
def with_extra(tiny_config: Config, tiny_folder: Path, tmp_path: Path) -> PreparedData:
    """`tiny_prepared` with some of its own test pairs as extra ones."""
    for language in ("de", "en"):
        lines = (tiny_folder / f"test.{language}").read_text("utf-8").splitlines(keepends=True)
        (tmp_path / f"more.{language}").write_text("".join(lines[:10]), "utf-8")
    data = tiny_config.data.model_copy(update={"extra": str(tmp_path / "more")})
    return prepare(tiny_config.replace(data=data), out=tmp_path / "data").data


def texts(data: PreparedData, split: Split) -> list[str]:
    """Each pair as text, whatever subwords it is cut into."""
    sides = ((split.src, data.src_vocabulary), (split.tgt, data.tgt_vocabulary))
    return [
        " = ".join("".join(words) for words in pair)
        for pair in zip(
            *([vocabulary.decode(ids) for ids in sentences(side)] for side, vocabulary in sides), strict=True
        )
    ]


@pytest.mark.parametrize("subword_dropout", [0.0, 0.5])
def test_extra_pairs_take_the_place_of_a_share_of_the_others(
    subword_dropout: float, with_extra: PreparedData
) -> None:
    data, share = with_extra, 0.25
    assert data.extra is not None
    own, extra = texts(data, data.split(data.train)), texts(data, data.split(data.extra))
    assert len(set(extra)) == 10
    assert not set(own) & set(extra)
    pairs = training_pairs(
        data,
        subword_dropout=subword_dropout,
        word_dropout=0.0,
        rare_words=0.0,
        extra_share=share,
        seed=1,
    )
    wanted = round(share * len(own))
    first, second = (texts(data, pairs(epoch)) for epoch in range(2))
    for drawn in (first, second):
        assert len(drawn) == len(own)
        assert not Counter(drawn[: len(own) - wanted]) - Counter(own)  # each of them once at most
        found = Counter(drawn[len(own) - wanted :])
        assert set(found) <= set(extra)
        assert set(found.values()) <= {wanted // 10, -(-wanted // 10)}  # each as often as any other
    assert set(first) != set(second)


def test_rare_words_stand_in_the_own_pairs_alone(with_extra: PreparedData) -> None:
    data = with_extra
    assert data.extra is not None
    pairs = training_pairs(
        data,
        subword_dropout=0.0,
        word_dropout=0.0,
        rare_words=0.3,
        extra_share=0.25,
        seed=1,
    )
    own, extra = texts(data, data.split(data.train)), texts(data, data.split(data.extra))
    wanted = round(0.25 * len(own))
    drawn = texts(data, pairs(0))
    assert set(drawn[len(own) - wanted :]) <= set(extra)
    changed = set(drawn[: len(own) - wanted]) - set(own)
    assert 0 < len(changed) <= 0.3 * len(own)


def test_without_a_share_extra_pairs_are_not_read(with_extra: PreparedData) -> None:
    plain = training_pairs(with_extra, subword_dropout=0.0, word_dropout=0.0, rare_words=0.0, seed=1)
    assert digest(plain(0)) == digest(with_extra.split("train"))

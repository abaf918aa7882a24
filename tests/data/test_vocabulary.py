"""Vocabularies: fixed specials, exact pieces, the same on every run, and text never becomes a special."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nmt.data import vocabulary as module
from nmt.data.text import Tokenizer, detokenize, escape, normalise
from nmt.data.vocabulary import (
    BOS,
    EOS,
    PAD,
    SPECIALS,
    UNK,
    SubwordVocabulary,
    Vocabulary,
    VocabularyState,
    WordVocabulary,
    build_subword_vocabulary,
    build_word_vocabulary,
    load_vocabulary,
)
from nmt.errors import ConfigError, DataError

ROOT = Path(module.__file__).parents[2]

STEMS = ("Hund", "Katze", "Mann", "Frau", "Kind", "Straße", "Haus", "Wald", "See", "Fahrrad")
ENDINGS = ("", "en", "s", "es", "chen", "weg", "bahn", "-Bild", "42", "’s")
ODD_TOKENS = (r"\_", r"\=", r"\\", r"\<unk>", "▁<pad>", "<", ">", "</s>", "▁⁇", "▁😀", "ﷺ", "日本", "'s")
COUNTS = Counter(
    {
        f"▁{stem}{ending}": 3 * i + 7 * j + 1
        for i, stem in enumerate(STEMS)
        for j, ending in enumerate(ENDINGS)
    }
    | {stem.lower(): 5 for stem in STEMS}
    | dict.fromkeys(ODD_TOKENS, 40)
)
CHARACTERS = sorted(set("".join(COUNTS)))


@pytest.fixture(scope="module")
def subwords() -> SubwordVocabulary:
    return build_subword_vocabulary(COUNTS, size=220)


@pytest.fixture(scope="module")
def words() -> WordVocabulary:
    return build_word_vocabulary(COUNTS, min_freq=1, max_size=None)


@pytest.fixture(params=["word", "subword"])
def either(request: pytest.FixtureRequest, words: WordVocabulary, subwords: SubwordVocabulary) -> Vocabulary:
    return words if request.param == "word" else subwords


known_token = st.one_of(st.sampled_from(sorted(COUNTS)), st.text(CHARACTERS, max_size=40))
any_token = st.one_of(
    known_token, st.text(max_size=20), st.text([*CHARACTERS, "\t", " ", "\x01", "▅", "\ud800"])
)


# both kinds


def test_the_specials_are_the_first_four(either: Vocabulary) -> None:
    assert (UNK, PAD, BOS, EOS) == (0, 1, 2, 3)
    assert either.pieces[:4] == SPECIALS == ("<unk>", "<pad>", "<bos>", "<eos>")
    assert len(either) == len(either.pieces) == len(set(either.pieces))


@pytest.mark.parametrize(
    "name", [*SPECIALS, *(escape(s) for s in SPECIALS), "<s>", "</s>", "\x01<eos>", "▁<eos>"]
)
def test_text_that_looks_like_a_special_gets_no_special_id(either: Vocabulary, name: str) -> None:
    assert {PAD, BOS, EOS}.isdisjoint(either.encode([name]))


def test_a_vocabulary_with_special_looking_text_holds_it_as_text() -> None:
    tokens = [escape(name) for name in SPECIALS]
    counts = Counter(dict.fromkeys(tokens, 3))
    for vocabulary in (
        build_word_vocabulary(counts, min_freq=1, max_size=None),
        build_subword_vocabulary(counts, size=100),
    ):
        ids = vocabulary.encode(tokens)
        assert min(ids) > EOS
        assert "".join(vocabulary.decode(ids)) == "".join(tokens)


def test_decoding_drops_the_specials(either: Vocabulary) -> None:
    ids = either.encode(["▁Hund", "s"])
    assert either.decode([BOS, *ids, UNK, EOS, PAD, PAD]) == either.decode(ids)
    assert either.decode([]) == []


@pytest.mark.parametrize("wrong", ["end", "below"])
def test_an_id_outside_the_vocabulary_raises(either: Vocabulary, wrong: str) -> None:
    with pytest.raises(IndexError):
        either.decode([len(either) if wrong == "end" else -1])


def test_a_saved_vocabulary_is_read_back(either: Vocabulary, tmp_path: Path) -> None:
    either.save(tmp_path, "source")
    expected = ["source.json"] if either.kind == "word" else ["source.json", "source.spm"]
    assert sorted(file.name for file in tmp_path.iterdir()) == expected
    read = load_vocabulary(tmp_path, "source")
    assert type(read) is type(either)
    assert read.to_state() == either.to_state()
    assert read.encode(list(COUNTS)) == either.encode(list(COUNTS))


def test_the_state_is_all_of_a_vocabulary(either: Vocabulary) -> None:
    state = either.to_state()
    assert state.kind == either.kind
    assert Vocabulary.from_state(state).encode(list(COUNTS)) == either.encode(list(COUNTS))


def test_building_leaves_the_counts_alone() -> None:
    counts = COUNTS.copy()
    build_word_vocabulary(counts, min_freq=2, max_size=5)
    build_subword_vocabulary(counts, size=200)
    assert counts == COUNTS
    assert list(counts) == list(COUNTS)


def test_a_one_shot_iterator_feeds_both_vocabularies() -> None:  # case 42
    lines = iter([f"Hund Nummer {number} läuft." for number in range(100)])
    sentences = list(Tokenizer("de").tokenize_many(lines))
    counts = Counter(token for tokens in sentences for token in tokens)
    vocabularies = [
        build_word_vocabulary(counts, min_freq=1, max_size=None),
        build_subword_vocabulary(counts, size=100),
    ]
    for vocabulary in vocabularies:
        assert len(vocabulary) > 10
        for tokens in sentences:
            assert "".join(vocabulary.decode(vocabulary.encode(tokens))) == "".join(tokens)
    assert len(sentences) == 100


def test_no_entry_is_blank() -> None:  # case 11
    tokens = Tokenizer("de")(" Ein  Mann\u00a0steht .\t")
    vocabulary = build_word_vocabulary(Counter(tokens), min_freq=1, max_size=None)
    assert sorted(vocabulary.pieces[4:]) == ["▁.", "▁Ein", "▁Mann", "▁steht"]


def test_threads_may_share_a_vocabulary(either: Vocabulary) -> None:
    fresh = Vocabulary.from_state(either.to_state())
    sentences = [list(COUNTS)[start : start + 7] for start in range(100)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(fresh.encode, sentences)) == [either.encode(tokens) for tokens in sentences]


def test_two_processes_build_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import json, sys; from collections import Counter; from pathlib import Path\n"
        "from nmt.data.vocabulary import *\n"
        "counts = Counter(json.loads(sys.stdin.read()))\n"
        "counts = Counter({token: counts[token] for token in set(counts)})  # an order that differs by run\n"
        "folder = Path(sys.argv[1]); folder.mkdir()\n"
        "build_word_vocabulary(counts, min_freq=2, max_size=90).save(folder, 'word')\n"
        "build_subword_vocabulary(counts, size=220).save(folder, 'subword')\n"
    )
    digests = set()
    for seed in ("1", "2"):
        folder = tmp_path / seed
        subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            input=json.dumps(COUNTS).encode(),
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
        )
        files = sorted(folder.iterdir())
        assert [file.name for file in files] == ["subword.json", "subword.spm", "word.json"]
        digests.add(tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))
    assert len(digests) == 1


@pytest.mark.parametrize("kind", ["word", "subword"])
def test_reading_and_decoding_need_no_library(kind: str, either: Vocabulary, tmp_path: Path) -> None:
    either.save(tmp_path, "saved")
    code = (
        "import sys; from pathlib import Path; from nmt.data.vocabulary import load_vocabulary\n"
        "vocabulary = load_vocabulary(Path(sys.argv[1]), 'saved')\n"
        "assert len(vocabulary.decode(range(len(vocabulary)))) == len(vocabulary) - 4\n"
        "if vocabulary.kind == 'word': vocabulary.encode(['a'])\n"
        "assert not {'torch', 'torchtext', 'spacy', 'sentencepiece', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)


# words


def test_words_are_ordered_by_count_then_by_token() -> None:
    counts = Counter({"▁c": 2, "▁b": 2, "▁z": 9, "▁a": 1})
    assert build_word_vocabulary(counts, min_freq=1, max_size=None).pieces[4:] == ("▁z", "▁b", "▁c", "▁a")
    assert build_word_vocabulary(counts, min_freq=2, max_size=None).pieces[4:] == ("▁z", "▁b", "▁c")
    assert build_word_vocabulary(counts, min_freq=1, max_size=2).pieces[4:] == ("▁z", "▁b")


def test_an_unknown_word_is_unk_and_looking_it_up_adds_nothing(words: WordVocabulary) -> None:
    before = words.to_state()
    assert words.encode(["▁Hund", "▁unbekannt", "<unk>", "", "▁Hund"])[1:4] == [UNK] * 3
    assert words.to_state() == before


def test_known_words_are_exact(words: WordVocabulary) -> None:
    tokens = sorted(COUNTS)
    assert words.decode(words.encode(tokens)) == tokens


@pytest.mark.parametrize(
    ("counts", "min_freq", "max_size", "names"),
    [
        (Counter({"▁a": 3, "▁b": 1}), 99, None, ["min_freq is 99", "occurs 3 times"]),
        (Counter({"▁a": 3}), 1, 0, ["max_size is 0"]),
        (Counter(), 1, None, ["occurs 0 times"]),
        (Counter({"<unk>": 5}), 1, None, []),
    ],
)
def test_a_vocabulary_of_specials_only_is_refused(  # case 13
    counts: Counter[str], min_freq: int, max_size: int | None, names: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        build_word_vocabulary(counts, min_freq=min_freq, max_size=max_size)
    assert all(name in caught.value.message for name in names)


# subwords


@given(st.lists(known_token, max_size=5))
def test_pieces_join_to_the_tokens_where_every_character_is_known(
    subwords: SubwordVocabulary, tokens: list[str]
) -> None:
    ids = subwords.encode(tokens)
    assert UNK not in ids
    assert "".join(subwords.decode(ids)) == "".join(tokens)


@given(any_token)
def test_unknown_characters_are_unk_and_all_others_stay(subwords: SubwordVocabulary, token: str) -> None:
    ids = subwords.encode([token])
    assert {PAD, BOS, EOS}.isdisjoint(ids)
    assert (UNK in ids) == any(character not in CHARACTERS for character in token)
    known = "".join(character for character in token if character in CHARACTERS)
    assert "".join(subwords.decode(ids)) == known  # and so no placeholder such as "⁇" is put in


@given(st.lists(known_token, max_size=5))
def test_tokens_are_encoded_one_by_one(subwords: SubwordVocabulary, tokens: list[str]) -> None:
    assert subwords.encode(tokens) == [i for token in tokens for i in subwords.encode([token])]


@given(any_token.filter(bool), st.integers(1, 70))
@example("▁Hund\0", 70)
def test_the_cuts_of_a_token_all_spell_it_and_begin_with_that_of_encode(
    subwords: SubwordVocabulary, token: str, most: int
) -> None:
    first, *others = subwords.cuts(token, most)
    assert first == subwords.encode([token])
    assert len(others) < most
    assert len({tuple(cut) for cut in [first, *others]}) == 1 + len(others)
    if UNK in first:
        assert not others
    for cut in others:
        assert min(cut) > EOS
        assert "".join(subwords.decode(cut)) == token


def test_cuts_are_ordered_by_the_likelihood_of_their_pieces(subwords: SubwordVocabulary) -> None:
    scores = subwords.log_probabilities()
    assert scores[:4] == [0.0] * 4
    assert max(scores[4:]) < 0.0
    for token in COUNTS:
        likelihoods = [sum(scores[i] for i in cut) for cut in subwords.cuts(token, 20)]
        assert likelihoods == pytest.approx(sorted(likelihoods, reverse=True), abs=1e-4)


def test_a_token_with_too_many_cuts_to_weigh_is_cut_without_a_word_on_stderr(
    tmp_path: Path,
) -> None:
    counts = Counter(
        {"abc": 9, "bcd": 9, "cde": 9, "dea": 9, "eab": 9, "ab": 20, "bc": 20, "cd": 20, "de": 20}
    )
    build_subword_vocabulary(counts, size=100).save(tmp_path, "saved")
    code = (
        "import sys; from pathlib import Path; from nmt.data.vocabulary import load_vocabulary\n"
        "assert load_vocabulary(Path(sys.argv[1]), 'saved').cuts('abcde' * 200, 64)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert answer.stderr == b""


def test_a_line_survives_the_whole_way_and_back() -> None:
    lines = [
        normalise(line) for line in ("<unk> ▁a▁ \\_ ▅▅ ⁇ \\<unk>", "Ein „Hund“ (groß) läuft.", "<pad> <eos>")
    ]
    tokenize = Tokenizer("de")
    counts = Counter(token for line in lines for token in tokenize(line))
    vocabulary = build_subword_vocabulary(counts, size=100)
    for line in lines:
        ids = vocabulary.encode(tokenize(line))
        assert min(ids) > EOS
        assert detokenize(vocabulary.decode(ids)) == line


def test_a_frequent_token_that_begins_no_other_is_one_piece() -> None:
    counts = COUNTS + Counter({"▁zwischen": 300, "▁einem": 300, "▁T-Shirt": 300})
    vocabulary = build_subword_vocabulary(counts, size=220)
    for token in ("▁zwischen", "▁einem", "▁T-Shirt"):
        assert vocabulary.decode(vocabulary.encode([token])) == [token]


def test_tokens_that_sentencepiece_cannot_take_break_nothing() -> None:
    odd = ["a\tb", "a\nb", "a b", "\x00", "\x01", "▅", "x▅", "\ud800", "", "\u2028", "▁" + "lang" * 1250]
    vocabulary = build_subword_vocabulary(COUNTS + Counter(dict.fromkeys(odd, 9)), size=220)
    assert vocabulary.pieces == build_subword_vocabulary(COUNTS, size=220).pieces
    for token in odd[:-2]:
        assert vocabulary.encode([token]).count(UNK) == (token != "")
    assert "".join(vocabulary.decode(vocabulary.encode(odd[-1:]))) == odd[-1]


@pytest.mark.parametrize(
    "tokens", [{"▁": 1}, {"a": 1}, {"▁Hund": 1}, {"▁Hund": 2, ".": 1}, {"▁aaaaaaaaaaaa": 5}]
)
def test_tiny_text_gives_few_pieces(tokens: dict[str, int]) -> None:
    vocabulary = build_subword_vocabulary(Counter(tokens), size=8000)
    assert 5 <= len(vocabulary) <= 40
    assert UNK not in vocabulary.encode(list(tokens))


def test_a_size_below_the_characters_is_refused_with_both_numbers() -> None:
    needed = len(CHARACTERS) + 4
    assert len(build_subword_vocabulary(COUNTS, size=needed)) == needed
    for size in (needed - 1, 5, 0):
        with pytest.raises(ConfigError) as caught:
            build_subword_vocabulary(COUNTS, size=size)
        assert f" {size} pieces" in caught.value.message
        assert f" {needed}" in caught.value.message


@pytest.mark.parametrize("counts", [Counter(), Counter({"": 3}), Counter({"▅": 3})])
def test_subwords_of_no_tokens_are_refused(counts: Counter[str]) -> None:
    with pytest.raises(DataError):
        build_subword_vocabulary(counts, size=100)


def test_what_is_remembered_of_tokens_is_bounded(
    subwords: SubwordVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CACHED_TOKENS", 10)
    fresh = SubwordVocabulary(subwords.pieces, subwords.model)
    tokens = [f"▁Hund{'en' * number}" for number in range(100)]
    assert fresh.encode(tokens) == subwords.encode(tokens)
    assert fresh._encode_token.cache_info().currsize == 10


def test_of_very_many_tokens_every_kth_is_learned_from_and_no_character_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = {f"▁wort{number}": 1 for number in range(2000)} | {"▁oft": 6000, "▁selten": 2, "▁Ω": 1}
    assert module._thin_out(counts) is counts
    size = sum(count * (len(token.encode()) + 1) for token, count in counts.items())
    monkeypatch.setattr(module, "_MOST_TRAINED_BYTES", -(-size // 10))
    thinned = module._thin_out(counts)
    assert thinned == module._thin_out(dict(reversed(counts.items())))
    assert thinned["▁oft"] == 600
    assert 200 <= sum(1 for token in thinned if token.startswith("▁wort")) <= 210
    assert set("".join(thinned)) == set("".join(counts))
    vocabulary = build_subword_vocabulary(Counter(counts), size=100)
    assert UNK not in vocabulary.encode(counts)


# damage


def change(**values: object) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        file = folder / "source.json"
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | values))

    return rewrite


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (lambda folder: (folder / "source.json").unlink(), "source.json"),
        (lambda folder: (folder / "source.spm").unlink(), "source.spm"),
        (lambda folder: (folder / "source.json").write_bytes(b'{"kind": "subw'), "source.json"),
        (lambda folder: (folder / "source.json").write_bytes(b"\xff\xfe"), "source.json"),
        (lambda folder: (folder / "source.json").write_bytes(b"[]"), "source.json"),
        (lambda folder: (folder / "source.json").write_bytes(b"{}"), "source.json"),
        (lambda folder: (folder / "source.spm").write_bytes(b"half"), "source.spm"),
        (change(kind="other"), "source.json"),
        (change(kind="word", pieces=[*SPECIALS, "a", "a"]), "source.json"),
        (change(kind="word", pieces=["a", "b"]), "source.json"),
        (change(kind="word", pieces=[*SPECIALS, ""]), "source.json"),
        (change(kind="word", pieces=[*SPECIALS, 7]), "source.json"),
        (change(kind="word", pieces="<unk>"), "source.json"),
    ],
)
def test_a_missing_or_damaged_file_is_named(
    subwords: SubwordVocabulary, tmp_path: Path, damage: Callable[[Path], None], file: str
) -> None:
    subwords.save(tmp_path, "source")
    damage(tmp_path)
    with pytest.raises(DataError) as caught:
        load_vocabulary(tmp_path, "source")
    assert str(tmp_path / file) in caught.value.message


@pytest.mark.parametrize("kind", ["word", "subword"])
def test_a_state_has_a_model_exactly_when_it_is_of_subwords(kind: str) -> None:
    model = b"a model" if kind == "word" else None
    with pytest.raises(DataError):
        Vocabulary.from_state(VocabularyState(kind, [*SPECIALS, "a"], model))


def test_a_model_that_does_not_fit_its_pieces_is_refused_at_the_first_encode(
    subwords: SubwordVocabulary,
) -> None:
    for pieces, model in (
        (subwords.pieces[:-1], subwords.model),
        ((*subwords.pieces[:-1], "▁fremd"), subwords.model),
        (subwords.pieces, subwords.model[: len(subwords.model) // 2]),
        (subwords.pieces, b""),
    ):
        with pytest.raises(DataError):
            SubwordVocabulary(pieces, model).encode(["▁Hund"])

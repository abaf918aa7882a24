"""Text: one normal form, and tokens that restore it exactly."""

from __future__ import annotations

import gzip
import itertools
import logging
import os
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data import text
from nmt.data.text import MARK, Tokenizer, detokenize, escape, normalise, unescape
from nmt.data.vocabulary import SPECIALS
from nmt.errors import DataError

# Characters with a meaning to someone on the way: white space, invisibles, marks, escapes, specials.
TRICKY = [
    *" \t\n\r\x0b\x0c\x1c\x85\u00a0\u1680\u2003\u2028\u2029\u202f\u3000",
    *"\x00\x01\x7f\x9f\u00ad\u200b\u200c\u200d\u200e\u202e\u2060\ufeff\ufe0f\U000e0041",
    *"\u0301\u0308\u0327\u0345\u034f\u1100\u1161\u2126\u212b\ud800\udcff\uffff",
    *"\\▁▅_=<>unkpadboseİßſς⁇😀👩'’\"„“.,-/:)(1%€",
    *SPECIALS,
    "Straße",
    "can't",
    "z.B.",
    "www.a-b.de",
]
tricky_text = st.lists(st.sampled_from(TRICKY), max_size=30).map("".join)
any_text = st.one_of(st.text(alphabet=st.characters(exclude_categories=()), max_size=60), tricky_text)

# Visible signs that Unicode files under "format" because they enclose the digits after them.
VISIBLE_FORMAT_CHARACTERS = ("ARABIC", "SYRIAC", "KAITHI")


@cache
def tokenizer(language: str) -> Tokenizer:
    return Tokenizer(language)


def assert_normal(line: str) -> None:
    assert unicodedata.is_normalized("NFC", line)
    assert line == line.strip()
    assert "  " not in line
    for character in set(line):
        assert character == " " or not character.isspace()
        assert unicodedata.category(character) not in {"Cc", "Cs"}
        if unicodedata.category(character) == "Cf":
            assert unicodedata.name(character).split()[0] in VISIBLE_FORMAT_CHARACTERS


# normalise


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        (" Ein  Mann\u00a0steht .\t", "Ein Mann steht ."),
        ("Ein\u2028Hund\x85läuft\x0bschnell\u3000weg.\r", "Ein Hund läuft schnell weg."),
        ("Dampf\u00adschiff", "Dampfschiff"),
        ("\ufeffEin\u200b Hu\u2060nd", "Ein Hund"),
        ("a\x00b\x1bc\u202ed", "abcd"),
        ("a\u0308", "ä"),
        ("a\u200b\u0308", "ä"),  # what stood between a letter and its accent goes first
        ("a \u200b b", "a b"),  # and so it does between two spaces
        ("\u200b", ""),
        ("caf\udce9", "caf\ufffd"),
        ("", ""),
    ],
)
def test_normalise_gives_one_form(raw: str, normal: str) -> None:
    assert normalise(raw) == normal


@given(any_text, st.booleans())
def test_normalising_twice_changes_nothing(raw: str, lowercase: bool) -> None:
    line = normalise(raw, lowercase)
    assert_normal(line)
    assert normalise(line, lowercase) == line


def test_every_character_of_unicode_has_a_normal_form() -> None:
    for start in range(0, sys.maxunicode + 1, 4096):
        raw = " ".join(f"a{chr(code)}b" for code in range(start, start + 4096))
        for lowercase in (False, True):
            line = normalise(raw, lowercase)
            assert_normal(line)
            assert normalise(line, lowercase) == line


def test_lowercasing_is_asked_for() -> None:
    assert normalise("ÜBER İstanbul ΑΣ") == "ÜBER İstanbul ΑΣ"
    assert normalise("ÜBER İstanbul ΑΣ", lowercase=True) == "über i\u0307stanbul ας"
    # The small letter has its accents in another order than the capital.
    assert normalise("\u0130\u0327", lowercase=True) == "i\u0327\u0307"


# escape


@given(any_text, any_text)
def test_unescaping_restores_escaped_text(first: str, second: str) -> None:
    assert unescape(escape(first)) == first
    assert unescape(escape(first) + escape(second)) == first + second


@given(any_text)
def test_escaped_text_is_no_special_and_its_mark_is_a_space(raw: str) -> None:
    escaped = escape(raw)
    assert escaped not in SPECIALS
    assert escaped.count(MARK) == raw.count(" ")
    assert "▅" not in escaped


@pytest.mark.parametrize("special", SPECIALS)
def test_a_special_as_text_is_escaped(special: str) -> None:
    assert escape(special) == "\\" + special


@given(st.lists(st.sampled_from([*"ab_=\\▁ ", "▁Hund", "\\_"]), max_size=12))
def test_any_pieces_of_a_model_become_a_normal_line(pieces: list[str]) -> None:
    assert_normal(detokenize(pieces))
    assert detokenize(["a\\", "▁b\\"]) == "a b"


# tokens


def test_a_token_says_whether_a_space_stood_before_it() -> None:
    assert tokenizer("de")("Ein Hund (groß).") == ["▁Ein", "▁Hund", "▁(", "groß", ")", "."]
    assert tokenizer("en")("I can't.") == ["▁I", "▁ca", "n't", "."]


def test_spaces_of_all_kinds_give_the_same_tokens_and_no_blank_one() -> None:  # case 11
    tokens = tokenizer("de")(" Ein  Mann\u00a0steht .\t")
    assert tokens == tokenizer("de")("Ein Mann steht .") == ["▁Ein", "▁Mann", "▁steht", "▁."]


@pytest.mark.parametrize("line", ["", " ", " \t\u2028", "\u200b\ufeff"])
def test_a_blank_line_has_no_tokens(line: str) -> None:
    assert tokenizer("de")(line) == []
    assert detokenize([]) == ""


@pytest.mark.parametrize("language", ["de", "en", "it", "hu", "zh", "xx"])
def test_detokenising_restores_the_normalised_line_of_any_text(language: str) -> None:
    @settings(max_examples=120, deadline=None)
    @given(any_text, st.booleans())
    def check(raw: str, lowercase: bool) -> None:
        line = normalise(raw, lowercase)
        tokens = tokenizer(language)(line)
        assert detokenize(tokens) == line
        assert not any(token.strip(MARK) == "" for token in tokens)
        assert not set(tokens) & set(SPECIALS)

    check()


def test_text_that_looks_like_specials_and_marks_survives() -> None:
    for line in ("<unk> <pad> x<eos><bos>", "a ▁b▁ ▁", "▅ a▅", r"\_ \▁ \\ \=", "⁇"):
        assert detokenize(tokenizer("de")(line)) == line


def test_a_line_of_thousands_of_words_is_tokenised_whole() -> None:
    tokens = tokenizer("de")("Hund " * 6000)
    assert tokens == ["▁Hund"] * 6000


@pytest.mark.parametrize("run", ["😀😁", "(", ".,'", "a", "ab ", "http://a.b/"])
def test_long_runs_without_a_space_are_cut_for_spacy_and_stay_exact(run: str) -> None:
    line = normalise("Ein " + run * 1500 + " Ende.")
    parts = text._parts(line)
    assert "".join(parts) == line
    assert max(len(word) for part in parts for word in part.split(" ")) <= text._MAX_RUN_CHARS
    assert not any(part.startswith(" ") or part.endswith(" ") for part in parts)
    tokens = tokenizer("de")(line)
    assert detokenize(tokens) == line
    assert tokens[0] == "▁Ein"
    assert tokens[-2:] == ["▁Ende", "."]


def test_a_word_as_long_as_spacy_may_see_is_not_cut() -> None:
    word = "a" * text._MAX_RUN_CHARS
    assert text._parts(f"{word} {word}") == [f"{word} {word}"]
    assert text._parts(f"{word}b c") == [word, "b c"]


@pytest.mark.parametrize("words", [["Ein", "Hund"], ["Ein ", " ", "Hund."], ["Ein ", "", "Hund."], []])
def test_a_tokenizer_that_loses_text_is_replaced_by_white_space(words: list[str]) -> None:
    broken = Tokenizer("de")
    broken._nlp.tokenizer = lambda line: [SimpleNamespace(text_with_ws=word) for word in words]
    assert broken("Ein Hund.") == ["▁Ein", "▁Hund."]


def test_lines_are_lowercased_where_that_is_asked_for() -> None:
    lines = ["Ein HUND.", "", "\u0130stanbul"]
    lowered = [tokenizer("de")(normalise(line, lowercase=True)) for line in lines]
    assert list(tokenizer("de").tokenize_many(lines, lowercase=True)) == lowered
    assert lowered[0] == ["▁ein", "▁hund", "."]


def test_lines_are_tokenised_lazily() -> None:
    endless = tokenizer("de").tokenize_many(f"Zeile {number}!" for number in itertools.count())
    assert list(itertools.islice(endless, 2)) == [["▁Zeile", "▁0", "!"], ["▁Zeile", "▁1", "!"]]


def test_spacys_memory_of_words_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Tokenizer("de")
    limit = len(own._nlp.vocab.strings) + 50
    monkeypatch.setattr(text, "_MAX_STRINGS", limit)
    lines = [f"wort{number} steht hier." for number in range(120)]
    for line, tokens in zip(lines, own.tokenize_many(lines), strict=True):
        assert tokens == ["▁" + line.split()[0], "▁steht", "▁hier", "."]
        assert len(own._nlp.vocab.strings) <= limit + 10


def test_threads_may_share_a_tokenizer() -> None:
    lines = [f"Ein Hund Nummer {number} läuft, (schnell)." for number in range(400)]
    alone = list(tokenizer("de").tokenize_many(lines))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(Tokenizer("de"), lines)) == alone


# spaCy: languages, pipelines, imports


def test_the_version_of_spacy_is_told() -> None:
    import spacy

    assert tokenizer("de").spacy_version == spacy.__version__


@pytest.mark.parametrize("language", ["qq", "", "german", "punctuation", "../de", "de\n"])
def test_an_unknown_language_is_named(language: str) -> None:
    with pytest.raises(DataError) as caught:
        Tokenizer(language)
    assert f"'{language}'" in caught.value.message


def test_a_language_that_needs_another_package_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def blank(language: str) -> None:
        raise ImportError("Japanese support requires SudachiPy.\nInstall it.")

    monkeypatch.setattr("spacy.blank", blank)
    with pytest.raises(DataError) as caught:
        Tokenizer("ja")
    assert caught.value.message.endswith("'ja' needs another package: Japanese support requires SudachiPy.")


@pytest.mark.parametrize(
    ("pipeline", "package"),
    [("de_core_absent_sm", "de_core_absent_sm"), ("de", "de_core_news_sm"), ("en", "en_core_web_sm")],
)
def test_an_absent_pipeline_gives_the_install_command_in_one_line(
    pipeline: str, package: str
) -> None:  # case 6
    with pytest.raises(DataError) as caught:
        Tokenizer("de", pipeline)
    assert caught.value.message == (
        f"spaCy pipeline '{pipeline}' is not installed: python -m spacy download {package}"
    )
    assert (f"write {package} in the config" in str(caught.value.hint)) == (pipeline != package)


@pytest.fixture
def installed_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package like spaCy's own, with a rule of its own and a component that cannot be built."""
    import spacy

    name = "de_nmt_test_sm"
    nlp = spacy.blank("de")
    nlp.tokenizer.add_special_case("Dampfschiff", [{"ORTH": "Dampf"}, {"ORTH": "schiff"}])
    nlp.add_pipe("sentencizer")
    nlp.meta.update(name="nmt_test_sm", version="1.0.0")
    package = tmp_path / name
    package.mkdir()
    data = package / f"{name}-1.0.0"
    nlp.to_disk(data)
    config = data / "config.cfg"
    config.write_text(config.read_text("utf-8").replace('"sentencizer"', '"no_such_component"'), "utf-8")
    (package / "meta.json").write_bytes((data / "meta.json").read_bytes())
    (package / "__init__.py").write_text(
        "from spacy.util import load_model_from_init_py\n\n\n"
        "def load(**overrides):\n    return load_model_from_init_py(__file__, **overrides)\n"
    )
    about = tmp_path / f"{name}-1.0.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def test_an_installed_pipeline_gives_its_tokenizer_and_runs_nothing_else(installed_pipeline: str) -> None:
    assert Tokenizer("de", installed_pipeline)("Ein Dampfschiff.") == ["▁Ein", "▁Dampf", "schiff", "."]
    assert tokenizer("de")("Ein Dampfschiff.") == ["▁Ein", "▁Dampfschiff", "."]


def test_a_pipeline_for_another_language_is_warned_about(
    installed_pipeline: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "nmt"):
        Tokenizer("de", installed_pipeline)
        assert caplog.messages == []
        Tokenizer("en", installed_pipeline)
    assert caplog.messages == [f"spaCy pipeline {installed_pipeline} is for 'de', not for 'en'"]


def test_a_damaged_pipeline_is_named(installed_pipeline: str, tmp_path: Path) -> None:
    next(tmp_path.rglob("config.cfg")).write_text("[nlp\n")
    with pytest.raises(DataError) as caught:
        Tokenizer("de", installed_pipeline)
    assert installed_pipeline in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint == f"python -m spacy download {installed_pipeline}"


def test_importing_the_module_loads_neither_spacy_nor_torch() -> None:
    code = (
        "import sys, nmt.data.text as text; text.detokenize(['▁a']);"
        "sys.exit(bool({'spacy', 'torch', 'torchtext', 'sentencepiece', 'numpy'} & set(sys.modules)))"
    )
    root = Path(text.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


# real text


@pytest.mark.skipif("NMT_MULTI30K" not in os.environ, reason="NMT_MULTI30K names no folder with Multi30k")
@pytest.mark.parametrize("language", ["de", "en"])
def test_every_sentence_of_multi30k_is_restored(language: str) -> None:
    files = sorted(Path(os.environ["NMT_MULTI30K"]).glob(f"*.{language}*"))
    assert files
    for file in files:
        content = file.read_bytes()
        lines = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8").split("\n")
        for line, tokens in zip(lines, tokenizer(language).tokenize_many(lines), strict=True):
            assert detokenize(tokens) == normalise(line)
            assert all(token.strip(MARK) for token in tokens)

"""Text to translations: one line in, one line out, whatever stands beside it and however it arrives."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import logging
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

import nmt
from nmt import translate as stage
from nmt.config import DecodeConfig, VocabularyConfig
from nmt.data.batching import pad_source
from nmt.data.corpus import Pair, iter_lines
from nmt.data.dataset import PreparedData
from nmt.data.text import Tokenizer, detokenize, normalise
from nmt.data.vocabulary import BOS, EOS, SPECIALS, UNK, build_word_vocabulary
from nmt.decoding.search import SearchOptions, search
from nmt.decoding.state import DecoderState, Hypothesis
from nmt.errors import ConfigError, DataError, ModelFileError
from nmt.model.packed import packed
from nmt.model.transformer import Transformer
from nmt.modelfile import SHIPPED, Model, shipped_model
from nmt.translate import CHUNK_LINES, Alignment, ArrivingLines, Translation, Translator

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def translator(tiny_model: Model) -> Translator:
    return Translator(tiny_model)


@pytest.fixture(scope="module")
def lines(caption_pairs: dict[str, list[Pair]]) -> list[str]:
    """Twelve lines of 1 to 40 words, in no order of length."""
    words = " ".join(pair.source for pair in caption_pairs["test"][:60]).split()
    lengths = [1, 2, 3, 5, 7, 9, 12, 15, 20, 26, 33, 40]
    random.Random(1).shuffle(lengths)
    starts = itertools.accumulate(lengths, initial=0)
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=False)]


@pytest.fixture
def chunk_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sentences each call of the decoder was given."""
    sizes: list[int] = []
    real = stage.search

    def counting(networks: Any, sentences: Sequence[Any], *arguments: Any, **named: Any) -> Any:
        sizes.append(len(sentences))
        return real(networks, sentences, *arguments, **named)

    monkeypatch.setattr(stage, "search", counting)
    return sizes


# ---------------------------------------------------------------- translations


def test_a_line_is_translated_alike_alone_and_among_others_and_each_time(
    translator: Translator, lines: list[str]
) -> None:
    together = translator.translate(lines)
    alone = [translator.translate([line])[0] for line in lines]
    assert [found.source for found in together] == lines
    assert [found.text for found in together] == [found.text for found in alone]
    assert [found.score for found in together] == pytest.approx([found.score for found in alone], abs=1e-4)
    assert len({found.text for found in together}) > 6, "the tiny model says the same to everything"
    assert translator.translate(lines) == together


def test_blank_lines_stay_empty_and_never_reach_the_model(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["Ein Hund läuft.", "", " \t", "Eine Frau lacht.", "\u00ad\u200b", "\u3000\n"]
    found = translator.translate(lines)
    assert [bool(translation.text) for translation in found] == [True, False, False, True, False, False]
    for index in (1, 2, 4, 5):
        assert found[index] == Translation(lines[index], "", 0.0, ())
    for index in (0, 3):
        alone = translator.translate([lines[index]])[0]
        assert (alone.text, alone.tokens) == (found[index].text, found[index].tokens)

    def refuse(*_: object) -> None:
        raise AssertionError("a blank line reached the model")

    monkeypatch.setattr(translator.model.network, "encode", refuse)
    assert [translation.text for translation in translator.translate(["", " ", "\u2028"])] == ["", "", ""]
    assert translator.translate([]) == []


def test_a_long_line_is_cut_with_a_warning_and_its_neighbours_are_not_touched(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    widths: list[int] = []
    (network,) = translator.networks
    encode = network.encode

    def measuring(src: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        widths.append(src.size(1))
        return encode(src, keep)

    monkeypatch.setattr(network, "encode", measuring)
    limit = translator.model.config.decode.max_source_tokens
    length = len(translator.encode(["Hund " * 6000])[0])
    with caplog.at_level(logging.WARNING, logger="nmt"):
        found = translator.translate(["Ein Hund läuft.", "Hund " * 6000, "Eine Frau lacht."])
    assert max(widths) == limit + 1, "one more for <eos>"
    (record,) = caplog.records
    assert "line 2" in record.getMessage()
    assert str(length) in record.getMessage()
    assert str(limit) in record.getMessage()
    assert found[1].tokens
    assert [found[0].text, found[2].text] == [
        translation.text for translation in translator.translate(["Ein Hund läuft.", "Eine Frau lacht."])
    ]


def test_a_text_is_one_clean_line_spelt_by_its_tokens(
    translator: Translator, caption_pairs: dict[str, list[Pair]]
) -> None:
    lines = [pair.source for pair in caption_pairs["val"][:50]]
    lines += ["<unk> <bos> </s> ⁇", "Ein Hund\u2028läuft\x85schnell\x0bweg.", "日本語 🙂", "▁ \\ _"]
    for translation in translator.translate(lines):
        assert translation.text == normalise(translation.text)
        assert len(translation.text.splitlines()) <= 1
        assert not any(special in translation.text for special in (*SPECIALS, "⁇", "▁"))
        assert " ".join("".join(translation.tokens).replace("▁", " ").split()) == translation.text


def test_separators_in_the_pieces_of_a_model_do_not_break_the_line(tiny_model: Model) -> None:
    strange = list(tiny_model.tgt_vocabulary.pieces)
    strange[4:] = [f"\u2028{piece}\x0b" for piece in strange[4:]]
    vocabulary = type(tiny_model.tgt_vocabulary)(strange, b"")  # type: ignore[call-arg]
    translator = Translator(dataclasses.replace(tiny_model, tgt_vocabulary=vocabulary))
    text = translator.translate(["Ein Hund läuft."])[0].text
    assert text
    assert len(text.splitlines()) == 1


def test_text_becomes_the_ids_that_preparation_gives_it(
    translator: Translator, tiny_prepared: PreparedData
) -> None:
    for name in ("val", "test"):
        ragged = tiny_prepared.split(name).src
        assert translator.encode(tiny_prepared.sources(name)) == [
            ragged[row].tolist() for row in range(len(ragged))
        ]


def test_white_space_makes_no_difference(translator: Translator) -> None:
    first, second = translator.translate([" Ein  Mann\u00a0steht .\t", "Ein Mann steht ."])
    assert (first.text, first.tokens) == (second.text, second.tokens)
    assert first.score == pytest.approx(second.score, abs=1e-4)


def test_a_source_is_lower_cased_where_the_model_was_trained_so(tiny_model: Model) -> None:
    config = tiny_model.config
    lowercase = config.replace(data=config.data.model_copy(update={"src_lowercase": True}))
    loud, quiet = "EIN HUND LÄUFT.", "ein hund läuft."
    translator = Translator(dataclasses.replace(tiny_model, config=lowercase))
    assert translator.encode([loud]) == translator.encode([quiet])
    cased = Translator(tiny_model)
    assert cased.encode([loud]) != cased.encode([quiet])


def test_threads_that_share_a_translator_get_what_one_would(translator: Translator, lines: list[str]) -> None:
    tasks = [random.Random(seed).sample(lines, 4) for seed in range(12)]
    alone = [[found.text for found in translator.translate(task)] for task in tasks]
    with ThreadPoolExecutor(4) as pool:
        shared = list(pool.map(translator.translate, tasks))
    assert [[found.text for found in answer] for answer in shared] == alone


def test_a_bare_text_is_refused_not_translated_letter_by_letter(translator: Translator) -> None:
    with pytest.raises(TypeError, match="list of texts"):
        translator.translate("Ein Hund läuft.")


def test_decoding_in_bf16_leaves_the_weights_as_they_are(tiny_model: Model) -> None:
    translation = Translator(tiny_model, dtype=torch.bfloat16).translate(["Ein Hund läuft."])[0]
    assert translation.text
    assert translation.score < 0
    assert {parameter.dtype for parameter in tiny_model.network.parameters()} == {torch.float32}


# ---------------------------------------------------------------- searching otherwise


def found_directly(model: Model, lines: Sequence[str], *networks: Any, **settings: Any) -> list[Any]:
    """What the search itself says of the lines: the reference for all that a translator does around it."""
    ids = Translator(model).encode(lines)
    decode = model.config.decode.model_copy(
        update={key: settings.pop(key) for key in ("beam", "length_penalty", "min_length") if key in settings}
    )
    options = SearchOptions(decode=decode, **settings)
    return search(networks or (packed(model.network),), ids, options, device="cpu")


def all_of(translation: Translation) -> list[Translation]:
    return [translation, *translation.alternatives]


def test_the_settings_reach_the_search_and_what_it_finds_comes_best_first(
    translator: Translator, lines: list[str]
) -> None:
    settings: dict[str, Any] = {"beam": 4, "nbest": 3, "length_penalty": 0.6, "min_length": 4}
    expected = found_directly(translator.model, lines, **settings)
    pieces = translator.model.tgt_vocabulary.pieces
    for translation, hypotheses in zip(translator.translate(lines, **settings), expected, strict=True):
        found = all_of(translation)
        assert [each.tokens for each in found] == [tuple(pieces[i] for i in each.ids) for each in hypotheses]
        for each, hypothesis in zip(found, hypotheses, strict=True):
            assert (each.score, each.log_prob) == (hypothesis.score, hypothesis.log_prob)
            assert each.token_log_probs == hypothesis.token_log_probs
            assert each.source == translation.source
            assert len(each.tokens) >= 4
        assert len({each.tokens for each in found}) == len(found) == 3
    greedy = translator.translate(lines, beam=1)
    assert [each.text for each in greedy] != [each.text for each in translator.translate(lines, **settings)]
    assert not any(each.alternatives for each in greedy)


def test_what_is_not_given_is_as_the_models_own_config_has_it(tiny_model: Model, lines: list[str]) -> None:
    decode = tiny_model.config.decode.model_copy(update={"beam": 3, "length_penalty": 0.0})
    own = Translator(dataclasses.replace(tiny_model, config=tiny_model.config.replace(decode=decode)))
    plain = Translator(tiny_model)
    assert own.translate(lines) == plain.translate(lines, beam=3, length_penalty=0.0)
    assert own.translate(lines, beam=1) == plain.translate(lines, beam=1, length_penalty=0.0)
    assert own.translate(lines, beam=None) == own.translate(lines)
    longest = own.translate(lines, max_length_ratio=0.001, max_length_extra=2)
    assert max(len(each.tokens) for each in longest) == 2


def test_twelve_lines_get_the_same_n_best_alone_and_together(
    translator: Translator, lines: list[str]
) -> None:
    together = translator.translate(lines, beam=4, nbest=4)
    alone = [translator.translate([line], beam=4, nbest=4)[0] for line in lines]
    narrow = translator.translate(lines, beam=4, nbest=4, batch_tokens=1)
    for first, second, third in zip(together, alone, narrow, strict=True):
        texts, scores = ([getattr(each, name) for each in all_of(first)] for name in ("text", "score"))
        for other in (second, third):
            assert [each.text for each in all_of(other)] == texts
            assert [each.score for each in all_of(other)] == pytest.approx(scores, abs=1e-4)


def test_every_score_is_that_of_teacher_forcing_in_float64(translator: Translator, lines: list[str]) -> None:
    network = copy.deepcopy(translator.model.network).double()
    pieces = translator.model.tgt_vocabulary.pieces
    for translation in translator.translate(lines, beam=3, nbest=2, length_penalty=0.7):
        src, src_keep = pad_source([translator.encode([translation.source])[0][:100]])
        for each in all_of(translation):
            ids = [pieces.index(token) for token in each.tokens]
            ids += [EOS] * (len(each.token_log_probs) - len(ids))
            with torch.inference_mode():
                log_probs = network(src, src_keep, torch.tensor([[BOS, *ids[:-1]]])).log_softmax(-1)[0]
            forced = [float(row[i]) for row, i in zip(log_probs, ids, strict=True)]
            assert each.token_log_probs == pytest.approx(forced, abs=1e-4)
            assert each.log_prob == pytest.approx(sum(forced), abs=1e-4)
            assert each.score == pytest.approx(sum(forced) / len(ids) ** 0.7, abs=1e-4)


def test_settings_that_cannot_be_are_refused(translator: Translator) -> None:
    with pytest.raises(ConfigError, match="3 translations of a sentence cannot come from a beam of 2"):
        translator.translate(["Ein Hund."], beam=2, nbest=3)
    with pytest.raises(ConfigError, match="beam"):
        translator.translate(["Ein Hund."], beam=0)
    with pytest.raises(ConfigError, match="spells words in pieces"):
        translator.translate(["Ein Hund."], copy_unknown=True)
    for name in ("bema", "vocabulary"):
        with pytest.raises(TypeError, match=name):
            translator.translate(["Ein Hund."], **{name: 5})  # type: ignore[arg-type]


def test_drawn_translations_depend_on_the_seed_and_their_text_alone(
    translator: Translator, lines: list[str]
) -> None:
    together = translator.translate(lines, sample=1.0, seed=7, nbest=3)
    assert [len(each.alternatives) for each in together] == [2] * len(lines)
    for translation in together[:4]:
        (alone,) = translator.translate([translation.source], sample=1.0, seed=7, nbest=3)
        assert [each.text for each in all_of(alone)] == [each.text for each in all_of(translation)]
    others = translator.translate(lines, sample=1.0, seed=8)
    assert [each.text for each in others] != [each.text for each in together]


def test_a_stream_takes_the_same_settings(translator: Translator, lines: list[str]) -> None:
    settings: dict[str, Any] = {"beam": 3, "nbest": 2, "align": True}
    assert list(translator.stream(iter(lines), **settings)) == translator.translate(lines, **settings)
    begun = list(translator.stream(iter(lines), prefix="A dog", beam=2))
    assert begun == translator.translate(lines, prefixes=["A dog"] * len(lines), beam=2)


# ---------------------------------------------------------------- prefixes


def test_a_translation_begins_with_its_prefix(translator: Translator) -> None:
    lines = ["Ein Hund läuft.", "Eine Frau lacht.", " ", "Ein Mann steht."]
    prefixes = ["Two women", "", "Two women", "the  日本 man"]
    for settings in ({}, {"beam": 3}, {"sample": 1.0}):
        found = translator.translate(lines, prefixes=prefixes, **settings)  # type: ignore[arg-type]
        assert found[0].text.startswith("Two women")
        assert found[2].text == "", "blank stays blank"
        assert found[3].text.startswith("the 日本 man"), "a word that the model does not know is kept as well"
        free = translator.translate(lines, **settings)  # type: ignore[arg-type]
        assert found[1].text == free[1].text
        assert found[0].text != free[0].text


def test_a_prefix_is_scored_as_if_it_had_been_found(translator: Translator) -> None:
    free = translator.translate(["Ein Hund läuft."])[0]
    (begun,) = translator.translate([free.source], prefixes=[" ".join(free.text.split()[:2])])
    assert (begun.text, begun.tokens) == (free.text, free.tokens)
    assert begun.token_log_probs == pytest.approx(free.token_log_probs, abs=1e-5)


def test_prefixes_are_texts_one_for_each_line(translator: Translator) -> None:
    with pytest.raises(ValueError, match="2 texts, but 1 prefixes"):
        translator.translate(["Ein Hund.", "Eine Frau."], prefixes=["A"])
    with pytest.raises(TypeError, match="list of prefixes"):
        translator.translate(["E", "F"], prefixes="AB")


# ---------------------------------------------------------------- alignment, and words that are not known


def test_an_alignment_is_the_source_token_of_the_greatest_attention(
    translator: Translator, lines: list[str]
) -> None:
    for translation in translator.translate([*lines, " "], beam=3, nbest=2, align=True):
        for each in all_of(translation):
            assert each.alignment is not None
            assert len(each.alignment) == len(each.tokens)
    for line, found in zip(lines, translator.translate(lines, align=True), strict=True):
        attention = translator.attention(line)
        weights = attention.weights[-1].mean(0)[: len(found.tokens), :-1]  # (T,S) without <eos>
        assert found.alignment == tuple(weights.argmax(-1).tolist())
        read = zip(found.source_tokens, attention.source_tokens[:-1], strict=True)
        assert all(token in (spelling, "<unk>") for spelling, token in read)
    assert translator.translate(lines)[0].alignment is None


def test_source_tokens_spell_the_line_whatever_the_model_knows(
    translator: Translator, word_translator: Translator
) -> None:
    for line in ("Ein Hund läuft.", "日本 Hund日a語🙂 x", "<unk> <eos> ▁ \\ _", "Ünïcödé-Straße"):
        for each in (translator, word_translator):
            (found,) = each.translate([line])
            assert detokenize(found.source_tokens) == normalise(line)
            assert len(found.source_tokens) == len(each.encode([line])[0])


@pytest.fixture(scope="module")
def word_translator(tiny_model: Model, caption_pairs: dict[str, list[Pair]]) -> Translator:
    """Of 30 words a side; its network, which has learned nothing, says `<unk>` rather often."""
    pairs, vocabularies = caption_pairs["train"][:100], []
    for language, side in (("de", "source"), ("en", "target")):
        tokenize = Tokenizer(language)
        counts = Counter(token for pair in pairs for token in tokenize(getattr(pair, side)))
        vocabularies.append(build_word_vocabulary(counts, min_freq=1, max_size=30))
    config = tiny_model.config.replace(
        vocabulary=VocabularyConfig(kind="word", joint=False),
        model=tiny_model.config.model.model_copy(update={"share_embeddings": "none"}),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = Transformer(config.model, *map(len, vocabularies)).eval()
    with torch.no_grad():
        network.projection.weight[UNK] = network.projection.weight[10:14].sum(0)
    return Translator(Model(None, config, network, *vocabularies, {}))


def test_unknown_words_are_copied_from_where_the_model_looked_only_when_asked(
    word_translator: Translator, lines: list[str]
) -> None:
    translator, copied = word_translator, 0
    expected = found_directly(translator.model, lines, beam=3, allow_unk=True)
    for translation, (hypothesis, *_) in zip(
        translator.translate(lines, beam=3, copy_unknown=True), expected, strict=True
    ):
        src, src_keep = pad_source(translator.encode([translation.source]))
        with torch.inference_mode():
            attention = translator.model.network.attention(
                src, src_keep, torch.tensor([[BOS, *hypothesis.ids]])
            )
        places = attention.decoder_cross[-1][0].mean(0)[:, :-1].argmax(-1).tolist()
        source_tokens = Tokenizer("de")(translation.source)
        assert translation.tokens == tuple(
            source_tokens[place] if token == UNK else translator.model.tgt_vocabulary.pieces[token]
            for token, place in zip(hypothesis.ids, places, strict=False)
        )
        assert translation.text == detokenize(translation.tokens)
        assert translation.score == hypothesis.score
        assert translation.alignment is None
        copied += hypothesis.ids.count(UNK)
    assert copied > 10, "nothing to copy"
    plain = translator.translate(lines, beam=3)
    assert [each.score for each in plain] == [
        hypotheses[0].score for hypotheses in found_directly(translator.model, lines, beam=3)
    ]
    assert not any("<unk>" in token for each in plain for token in each.tokens)


def test_a_copied_word_stands_as_it_was_written_and_never_comes_from_the_end(
    word_translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = word_translator.model.tgt_vocabulary.pieces[4]
    hypothesis = Hypothesis((UNK, 4, UNK, UNK), -1.0, -1.0, True)
    looks = torch.tensor(  # (T,S): Zwei Müller <laufen> . <eos>
        [
            [0.1, 0.5, 0.2, 0.1, 0.1],
            [1, 0, 0, 0, 0],
            [0, 0, 0.2, 0, 0.8],
            [0, 0, 0, 0.6, 0.4],
            [1, 0, 0, 0, 0],
        ]
    )
    monkeypatch.setattr(stage, "search", lambda *_, **__: [(hypothesis,)])
    monkeypatch.setattr(stage, "mean_attention", lambda *_: looks[None])
    (found,) = word_translator.translate(["Zwei Müller laufen."], copy_unknown=True, align=True)
    assert found.source_tokens == ("▁Zwei", "▁Müller", "▁laufen", ".")
    assert found.tokens == ("▁Müller", known, "▁laufen", ".")
    assert found.text == detokenize(("▁Müller", known)) + " laufen."
    assert found.alignment == (1, 0, 2, 3)


@pytest.mark.parametrize(
    ("name", "language", "is_told"),
    [
        ("text.fr", "de", True),
        ("text.fr.gz", "de", True),
        ("text.en", "de", True),
        ("text.de", "de", False),
        ("text.de.gz", "de", False),
        ("text.fr", "xx", False),
        *(
            (name, "de", False)
            for name in ("text.txt", "text.tok", "text.src", "text.gz", "text.FR", "fr", ".fr", "-")
        ),
    ],
)
def test_a_file_is_told_of_where_its_ending_is_another_language(
    name: str, language: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stage.warn_of_another_language(Path(name), language, "reads")
    assert (f"{name} ends in ." in caplog.text and f"the model reads {language}" in caplog.text) is is_told


# ---------------------------------------------------------------- ensembles


def test_an_ensemble_of_one_model_twice_is_that_model(
    translator: Translator, tiny_model: Model, tiny_model_path: Path, lines: list[str]
) -> None:
    expected = translator.translate(lines, beam=3, nbest=2, align=True)
    loaded = Translator.load([tiny_model_path, tiny_model_path.parent], device="cpu")
    for twice in (Translator(tiny_model, tiny_model), loaded):
        found = twice.translate(lines, beam=3, nbest=2, align=True)
        for one, both in zip(expected, found, strict=True):
            assert [each.text for each in all_of(both)] == [each.text for each in all_of(one)]
            assert both.score == pytest.approx(one.score, abs=1e-4)
            assert both.alignment == one.alignment


def test_an_ensemble_searches_with_all_its_networks(tiny_model: Model, lines: list[str]) -> None:
    torch.manual_seed(5)
    other = copy.deepcopy(tiny_model.network)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.1 * torch.randn_like(weight)
    ensemble = Translator(tiny_model, dataclasses.replace(tiny_model, network=other))
    networks = packed(tiny_model.network), packed(other)
    expected = found_directly(tiny_model, lines, *networks, beam=3)
    assert [each.score for each in ensemble.translate(lines, beam=3)] == [each[0].score for each in expected]
    first = Translator(tiny_model).translate(lines, beam=3)
    assert [each.score for each in ensemble.translate(lines, beam=3)] != [each.score for each in first]
    for found in ensemble.translate(lines[:4], align=True):
        src, src_keep = pad_source([ensemble.encode([found.source])[0][:100]])
        tgt_in = torch.tensor([[BOS, *map(tiny_model.tgt_vocabulary.pieces.index, found.tokens)]])
        with torch.inference_mode():
            both = [
                network.attention(src, src_keep, tgt_in).decoder_cross[-1][0].mean(0)
                for network in (tiny_model.network, other)
            ]
        assert found.alignment == tuple((both[0] + both[1])[:-1, :-1].argmax(-1).tolist())
    with pytest.raises(ConfigError, match="no one attention"):
        ensemble.attention("Ein Hund.")


def test_models_of_other_vocabularies_are_no_ensemble(tiny_model: Model, word_translator: Translator) -> None:
    with pytest.raises(ModelFileError, match="make no ensemble: they differ in source vocabulary"):
        Translator(tiny_model, word_translator.model)


# ---------------------------------------------------------------- attention


def test_attention_comes_with_the_translation_and_names_its_rows_and_columns(
    translator: Translator, lines: list[str]
) -> None:
    vocabulary, layers, heads = translator.model.src_vocabulary, 1, 4
    for line in lines:
        alignment = translator.attention(line)
        assert alignment.translation == dataclasses.replace(
            translator.translate([line])[0], score=alignment.translation.score
        )
        ids = translator.encode([line])[0][: translator.model.config.decode.max_source_tokens]
        assert alignment.source_tokens == (*(vocabulary.pieces[i] for i in ids), "<eos>")
        finished = alignment.target_tokens[-1] == "<eos>"
        assert alignment.target_tokens[: -1 if finished else None] == alignment.translation.tokens
        shape = layers, heads, len(alignment.target_tokens), len(alignment.source_tokens)
        assert tuple(alignment.weights.shape) == shape
        assert alignment.weights.dtype == torch.float32
        assert alignment.weights.min() >= 0
        assert torch.allclose(alignment.weights.sum(-1), torch.ones(shape[:3]), atol=1e-5)


def test_a_row_of_attention_is_that_of_the_step_which_predicted_the_token(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder one token at a time, as search runs it, is the independent witness."""
    network = translator.model.network
    cross = network.decoder[-1].cross_attention
    alignment = translator.attention("Ein Hund läuft.")
    target_ids = [translator.model.tgt_vocabulary.pieces.index(token) for token in alignment.target_tokens]
    src, src_keep = pad_source(translator.encode(["Ein Hund läuft."]))
    witnessed: list[torch.Tensor] = []
    forward = type(cross).forward

    def witness(self: Any, states: torch.Tensor, keys_values: Any, *rest: Any, **named: Any) -> torch.Tensor:
        query = self.query(states).view(1, 1, 4, 12).transpose(1, 2)  # (1,H,1,D)
        keys = keys_values[0][:, :, : src.size(1)]  # behind them there may be room
        witnessed.append((query @ keys.mT / 12**0.5).softmax(-1)[0, :, 0])  # (H,S)
        return forward(self, states, keys_values, *rest, **named)

    with torch.inference_mode():
        state = DecoderState.start(network, src, src_keep)
        monkeypatch.setattr(cross, "forward", lambda *given, **named: witness(cross, *given, **named))
        for read in (BOS, *target_ids[:-1]):
            log_probs, state = state.step(network, torch.tensor([read]))
    assert int(log_probs.argmax()) == target_ids[-1]
    assert torch.allclose(alignment.weights[-1], torch.stack(witnessed, dim=1), atol=1e-5)  # (H,T,S)


def test_attention_over_a_cut_source_or_in_a_cut_translation_still_fits_its_tokens(tiny_model: Model) -> None:
    decode = DecodeConfig(max_source_tokens=5, max_length_ratio=0.1, max_length_extra=2)
    translator = Translator(dataclasses.replace(tiny_model, config=tiny_model.config.replace(decode=decode)))
    alignment = translator.attention("Eine Frau und ein Mann sitzen auf einer Bank.")
    assert (len(alignment.source_tokens), alignment.source_tokens[-1]) == (6, "<eos>")
    assert len(alignment.target_tokens) == 2, "the limit came before <eos>"
    assert tuple(alignment.weights.shape[2:]) == (2, 6)


def test_attention_is_float32_when_the_search_is_not(tiny_model: Model) -> None:
    alignment = Translator(tiny_model, dtype=torch.bfloat16).attention("Ein Hund läuft.")
    assert torch.allclose(alignment.weights.sum(-1), torch.ones(()), atol=1e-5)


def test_a_blank_line_has_no_attention(translator: Translator) -> None:
    with pytest.raises(DataError, match="blank"):
        translator.attention(" \u200b")


def test_an_alignment_is_drawn_with_readable_tokens_the_last_layer_first_of_all(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.rand(3, 4, 2, 4)
    translation = Translation("Ein Hünd  chen", "A dog", -1.0, ("▁A",))
    tokens = ("▁Ein", "d", "▁", "<unk>"), ("▁\\_", "▁a▁b")
    alignment = Alignment(translation, *tokens, weights)
    drawn: dict[str, Any] = {}

    def draw(matrix: Any, source: list[str], target: list[str], path: Path, *, title: str) -> None:
        drawn.update(matrix=matrix, source=source, target=target, title=title)

    monkeypatch.setattr("nmt.scoring.heatmaps.draw_attention", draw)
    alignment.draw(tmp_path / "a.png")
    assert torch.equal(torch.from_numpy(drawn["matrix"]), weights[2])
    assert drawn["source"] == ["Ein", "+d", "␣", "<unk>"]
    assert drawn["target"] == ["▁", "a␣b"], "what the text itself held is shown as it was"
    assert "layer 3 of 3" in drawn["title"]
    alignment.draw(tmp_path / "a.png", layer=0)
    assert torch.equal(torch.from_numpy(drawn["matrix"]), weights[0])
    assert "layer 1 of 3" in drawn["title"]


# ---------------------------------------------------------------- streams


def test_a_stream_gives_what_translate_gives_line_by_line_in_order(
    translator: Translator, lines: list[str], chunk_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "CHUNK_LINES", 100)
    many = ["", *lines[:4], " "] * 40
    expected = [found.text for found in translator.translate(many[:6])] * 40
    chunk_sizes.clear()
    found = list(translator.stream(iter(many)))
    assert [translation.source for translation in found] == many
    assert [translation.text for translation in found] == expected
    assert chunk_sizes == [100, 100, 40]


def test_an_endless_stream_is_read_only_as_far_as_it_is_needed(translator: Translator) -> None:
    read: list[str] = []

    def endless() -> Iterator[str]:
        while True:
            read.append("Ein Hund.")
            yield read[-1]

    assert len(list(itertools.islice(translator.stream(endless()), 10))) == 10
    assert len(read) == CHUNK_LINES


def test_huge_lines_are_not_piled_up(
    translator: Translator, chunk_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "CHUNK_CHARS", 100)
    list(translator.stream(["Ein Hund läuft.", "Hund " * 30, "Ein Hund.", "Hund " * 50, "Ein Hund."]))
    assert chunk_sizes == [2, 2, 1]


def test_an_interactive_line_is_answered_before_the_next_is_asked_for(translator: Translator) -> None:
    lines = ["Ein Hund läuft.", "", "Eine Frau lacht."]
    asked: list[str] = []

    def ask() -> Iterator[str]:
        for line in lines:
            asked.append(line)
            yield line

    answers = translator.stream(ask(), interactive=True)
    for count, line in enumerate(lines, start=1):
        assert next(answers).source == line
        assert len(asked) == count


def test_the_warning_of_a_cut_names_the_line_of_the_stream(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [""] * (CHUNK_LINES + 3) + ["Hund " * 200]
    with caplog.at_level(logging.WARNING, logger="nmt"):
        list(translator.stream(lines))
    assert f"line {len(lines)}" in caplog.text


def test_lines_before_a_faulty_one_are_answered_before_the_fault_is_raised(translator: Translator) -> None:
    stream = io.BytesIO(b"Ein Hund.\nEine Frau.\n\xff\nEin Mann.\n")
    answers = translator.stream(ArrivingLines(stream, "input"))
    assert [next(answers).source, next(answers).source] == ["Ein Hund.", "Eine Frau."]
    with pytest.raises(DataError, match="line 3"):
        next(answers)


# ---------------------------------------------------------------- lines as they arrive


def within_10_s(work: Callable[[], Any]) -> Any:
    """The result of `work`, which must not wait for anything."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(10)
    assert results, "it waits, or failed"
    return results[0]


@pytest.fixture
def pipe() -> Iterator[tuple[io.BufferedReader, io.FileIO]]:
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "wb", buffering=0) as writer:
        yield reader, writer


@pytest.mark.skipif(os.name != "posix", reason="only POSIX can ask a pipe")
def test_a_pipe_that_stays_open_is_answered_line_by_line(
    translator: Translator, pipe: tuple[io.BufferedReader, io.FileIO], chunk_sizes: list[int]
) -> None:
    reader, writer = pipe
    answers = translator.stream(ArrivingLines(reader, "input"))
    writer.write("Ein Hund läuft.\n".encode())
    assert within_10_s(lambda: next(answers)).source == "Ein Hund läuft."
    writer.write(b"Ein Mann.\nEine Frau.\nEin Ha")
    assert within_10_s(lambda: [next(answers).source, next(answers).source]) == ["Ein Mann.", "Eine Frau."]
    writer.write(b"us.")
    writer.close()
    assert within_10_s(lambda: [found.source for found in answers]) == ["Ein Haus."]
    assert chunk_sizes == [1, 2, 1]


@pytest.mark.skipif(os.name != "posix", reason="only POSIX can ask a pipe")
def test_a_line_has_arrived_when_its_end_has(pipe: tuple[io.BufferedReader, io.FileIO]) -> None:
    reader, writer = pipe
    lines = ArrivingLines(reader, "input")
    for part, arrived in ((b"a", False), (b"b", False), (b"\n", True)):
        writer.write(part)
        assert lines.has_arrived() is arrived
    assert next(lines) == "ab"
    assert not lines.has_arrived()
    writer.close()
    assert lines.has_arrived()
    assert next(lines, "the end") == "the end"


@pytest.mark.skipif(os.name != "posix", reason="only POSIX can ask a pipe")
def test_lines_that_are_already_in_a_pipe_are_translated_together(
    translator: Translator, pipe: tuple[io.BufferedReader, io.FileIO], chunk_sizes: list[int]
) -> None:
    reader, writer = pipe
    count = CHUNK_LINES + 44
    writer.write(b"Ein Hund.\n" * count)
    writer.close()
    assert len(list(translator.stream(ArrivingLines(reader, "input")))) == count
    assert chunk_sizes == [CHUNK_LINES, 44]


CONTENTS = (
    b"",
    b"\n",
    b"\xef\xbb\xbf",
    b"\xef\xbb\xbfEin Hund.\r\n\r\nEine Frau.",
    "a\u2028b\x85c\x0bd\x0ce\rf\n\n\ng\n".encode(),
    b"x" * 200_000 + b"\n" + b"y" * 70_000,
)


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
@pytest.mark.parametrize("kind", ["memory", "file", "unbuffered file", "read ahead"])
def test_arriving_lines_are_the_lines_of_the_stream(tmp_path: Path, content: bytes, kind: str) -> None:
    (tmp_path / "text").write_bytes(content)
    expected = list(iter_lines(io.BytesIO(content), "text"))
    if kind == "memory":
        stream: Any = io.BytesIO(content)
    else:
        stream = open(tmp_path / "text", "rb", buffering=0 if kind == "unbuffered file" else -1)  # noqa: SIM115
    with stream:
        if kind == "read ahead":
            stream.peek()
        lines = ArrivingLines(stream, "text")
        found = []
        for line in lines:
            found.append(line)
            assert lines.has_arrived(), "what lies in a file need not be waited for"
    assert found == expected


def test_of_a_terminal_that_cannot_be_asked_each_line_is_answered_at_once(
    translator: Translator, chunk_sizes: list[int]
) -> None:
    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

    list(translator.stream(ArrivingLines(Terminal(b"Ein Hund.\nEin Mann.\n"), "input")))
    assert chunk_sizes == [1, 1]


# ---------------------------------------------------------------- loading


def test_a_run_folder_a_model_file_and_the_environment_name_the_same_model(
    tiny_model_path: Path,
    translator: Translator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = translator.translate(["Ein Hund läuft."])
    monkeypatch.setenv("NMT_MODEL", str(tiny_model_path.parent))
    for path in (tiny_model_path, str(tiny_model_path.parent), None):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="nmt"):
            loaded = Translator.load(path, device="cpu")
        assert loaded.translate(["Ein Hund läuft."]) == expected
        assert str(tiny_model_path) in caplog.text


def test_where_none_is_named_the_model_that_comes_with_nmt_is_loaded_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NMT_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    Path(SHIPPED).mkdir()  # something else of that name is not what was asked for
    with caplog.at_level(logging.INFO, logger="nmt"):
        assert Translator.load(device="cpu").model.path == shipped_model()
    assert [record.getMessage().partition(" on ")[0] for record in caplog.records] == [
        f"model {SHIPPED}, which comes with nmt,"
    ]
    Path(SHIPPED).rmdir()
    assert Translator.load(SHIPPED, device="cpu").model.path == shipped_model()


def test_a_model_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="nowhere") as caught:
        Translator.load(tmp_path / "nowhere")
    assert "train" in (caught.value.hint or "")


def test_a_model_of_another_spacy_warns_once(tiny_model: Model, caplog: pytest.LogCaptureFixture) -> None:
    provenance = {**tiny_model.provenance, "versions": {"spacy": "3.7.9"}}
    with caplog.at_level(logging.WARNING, logger="nmt"):
        translator = Translator(dataclasses.replace(tiny_model, provenance=provenance))
        translator.translate(["Ein Hund.", "Eine Frau."])
        translator.translate(["Ein Hund."])
    assert [record.getMessage() for record in caplog.records if "3.7.9" in record.getMessage()] == [
        caplog.records[0].getMessage()
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="nmt"):
        Translator(tiny_model).translate(["Ein Hund."])
    assert not caplog.records


def test_importing_nmt_costs_nothing_and_translating_loads_no_more_than_it_needs(
    tiny_model_path: Path,
) -> None:
    code = f"""
import sys
import nmt
assert not {{"torch", "spacy", "numpy", "pydantic"}} & set(sys.modules)
translator = nmt.Translator.load({str(tiny_model_path)!r}, device="cpu")
assert translator.translate(["Ein Hund läuft."])[0].text
heavy = {{"matplotlib", "torchtext", "sacrebleu", "portalocker"}} & set(sys.modules)
assert not heavy, heavy
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert answer.returncode == 0, answer.stderr


def test_the_package_offers_the_translator_and_nothing_by_accident() -> None:
    assert nmt.Translator is Translator
    assert nmt.Translation is Translation
    with pytest.raises(AttributeError, match="no attribute 'Transaltor'"):
        nmt.Transaltor  # noqa: B018


def test_any_iterable_of_texts_will_do_and_nothing_but_texts(
    translator: Translator, lines: list[str]
) -> None:
    assert translator.translate(line for line in lines) == translator.translate(lines)
    with pytest.raises(TypeError, match="int"):
        translator.translate(["Ein Hund.", 3])  # type: ignore[list-item]


# --- any text whatever ------------------------------------------------------------------------------------

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "<unk>",
        "<bos> <eos>",
        "▁",
        "\\",
        "\ufeff",
        "\u2028",
        "\x85\x0b",
        "\u200b",
        "a\u0300" * 9,
        "👩‍👩‍👧",
        "\x00",
        "\r\n",
    ]
)


@pytest.mark.slow
@examples(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(ANY_TEXT, min_size=50, max_size=50))
def test_ten_thousand_arbitrary_texts_give_a_line_each(translator: Translator, texts: list[str]) -> None:
    found = translator.translate(texts, beam=1, max_length_ratio=0.5, max_length_extra=3)
    assert [translation.source for translation in found] == texts
    for translation in found:
        assert len(translation.text.splitlines()) <= 1
        assert not set(translation.tokens) & set(SPECIALS)
        assert bool(translation.text) <= bool(normalise(translation.source))

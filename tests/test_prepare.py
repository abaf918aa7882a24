"""`prepare`: what is dropped and counted, when a folder is made anew, two at once, what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import nmt.prepare
from nmt.config import Config, DataConfig, VocabularyConfig, load_config
from nmt.data.batching import plan_batches, token_share
from nmt.data.dataset import FORMAT, open_prepared, read_manifest
from nmt.data.text import Tokenizer, detokenize
from nmt.errors import ConfigError, DataError, MachineError
from nmt.prepare import open_or_prepare, prepare

PAIRS = [("Ein Hund läuft.", "A dog runs."), ("Zwei Katzen schlafen.", "Two cats sleep.")] * 3


def write_corpus(
    folder: Path, train: list[tuple[str, str]], val: list[tuple[str, str]] | None = None
) -> Config:
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train", train), ("val", val or PAIRS[:2]), ("test", PAIRS[:2])):
        for side, lang in enumerate(("de", "en")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{name}.{lang}").write_bytes(text.encode())
    return Config(data=DataConfig(source=str(folder)), vocabulary=VocabularyConfig(size=60))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_ids_lead_back_to_the_text() -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    data = prepare(config).data
    split = data.split("test")
    assert [detokenize(data.src_vocabulary.decode(split.src[i])) for i in range(2)] == [
        s for s, _ in PAIRS[:2]
    ]
    assert [detokenize(data.tgt_vocabulary.decode(split.tgt[i])) for i in range(2)] == [
        t for _, t in PAIRS[:2]
    ]


def test_training_pairs_with_an_empty_side_are_dropped_as_pairs_and_counted() -> None:
    train = [*PAIRS, ("", "Nothing."), ("Nichts.", " \u200b\t"), ("\u00a0", "")]
    words = VocabularyConfig(kind="word")
    data = prepare(write_corpus(Path("corpus"), train).replace(vocabulary=words)).data
    counts = data.manifest.counts["train"]
    assert (counts.pairs_read, counts.pairs_kept, counts.dropped_empty) == (9, 6, 3)
    assert "▁Katzen" in data.src_vocabulary.pieces
    assert not {"▁Nothing", "▁Nichts"} & set(data.src_vocabulary.pieces)


def test_over_long_training_pairs_are_dropped_and_counted_and_evaluation_lines_never() -> None:
    long = ("Hund " * 5000, "dog " * 5000)
    config = write_corpus(Path("corpus"), [*PAIRS, long], val=[*PAIRS[:2], long, ("", "")])
    data = prepare(config).data
    counts = data.manifest.counts
    assert (counts["train"].pairs_kept, counts["train"].dropped_long) == (6, 1)
    assert max(data.split("train").src.lengths) <= config.data.max_tokens
    assert (counts["val"].pairs_read, counts["val"].pairs_kept) == (4, 4)
    assert data.references("val") == [PAIRS[0][1], PAIRS[1][1], long[1], ""]


def test_the_pieces_from_one_word_start_to_the_next_spell_the_words_of_the_kept_pairs() -> None:
    long = ("Hund " * 200, "dog " * 200)
    train = [PAIRS[0], ("", ""), long, PAIRS[1], ("Ein Straßenhund bellt…", "A stray dog barks…"), *PAIRS]
    data = prepare(write_corpus(Path("corpus"), train)).data
    kept = [pair for pair in train if pair[0] and pair is not long]
    split = data.split("train")
    for side, ids, vocabulary, language in (
        ("src", split.src.ids, data.src_vocabulary, "de"),
        ("tgt", split.tgt.ids, data.tgt_vocabulary, "en"),
    ):
        words = np.split(ids, np.flatnonzero(data.word_starts("train", side))[1:])
        tokenizer = Tokenizer(language)
        expected = [token for pair in kept for token in tokenizer(pair[side == "tgt"])]
        assert ["".join(vocabulary.decode(word)) for word in words] == expected
        assert max(map(len, words)) > 1


@pytest.mark.parametrize("kind", ["subword", "word"])
def test_the_folder_is_the_same_whatever_is_tokenised_at_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = ("Hund " * 200, "dog " * 200)
    train = [("", "Nothing."), *PAIRS, long, ("Nichts.", " "), ("Ein Straßenhund bellt…", "Barks…"), *PAIRS]
    config = write_corpus(Path("corpus"), train, val=[("", ""), PAIRS[0], long, PAIRS[1]])
    config = config.replace(vocabulary=VocabularyConfig(kind=kind, size=60))
    found = []
    for pairs in (1, 2, 5, 1000):
        monkeypatch.setattr(nmt.prepare, "PART_PAIRS", pairs)
        folder = prepare(config, out=Path(f"by{pairs}")).folder
        found.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert all(other == found[0] for other in found[1:])
    counts = open_prepared(folder).manifest.counts["train"]
    assert (counts.pairs_read, counts.pairs_kept) == (16, 13)
    assert (counts.dropped_empty, counts.dropped_long) == (2, 1)


def test_memory_does_not_grow_with_the_number_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.prepare, "PART_PAIRS", 256)

    def peak_mb(pairs: int) -> float:
        config = write_corpus(Path(f"corpus{pairs}"), (PAIRS * pairs)[:pairs])
        tracemalloc.start()
        prepare(config)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak / 1e6

    peak_mb(10)  # what is imported and cached
    assert peak_mb(20_000) - peak_mb(2_000) < 2


def test_a_fault_in_the_middle_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_corpus(Path("corpus"), PAIRS)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("_number", "_build_vocabularies", "_word_starts"):
        with monkeypatch.context() as broken:
            broken.setattr(nmt.prepare, name, fail)
            with pytest.raises(MachineError, match="No space left"):
                prepare(config, out=Path("ready"))
        assert sorted(path.name for path in Path().iterdir()) == [".ready.lock", "corpus"]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this platform kills otherwise")
def test_a_killed_prepare_leaves_at_most_a_draft_which_the_next_one_clears_away(tmp_path: Path) -> None:
    config = write_corpus(tmp_path / "corpus", PAIRS)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    code = (
        "import os, signal, sys; from pathlib import Path; import nmt.prepare as module\n"
        "from nmt.config import load_config\n"
        "setattr(module, sys.argv[1], lambda *_: os.kill(os.getpid(), signal.SIGKILL))\n"
        "module.prepare(load_config('config.yaml'), out=Path('ready'))"
    )
    for name, left in (("_build_vocabularies", []), ("_word_starts", [".ready.draft"])):
        killed = subprocess.run([sys.executable, "-c", code, name], capture_output=True, timeout=120)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        found = sorted(path.name for path in tmp_path.iterdir())
        assert found == [*left, ".ready.lock", "config.yaml", "corpus"]
    prepare(config, out=Path("ready"))
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == [".ready.lock", "config.yaml", "corpus", "ready"]


def test_a_vocabulary_of_words_keeps_no_word_starts() -> None:
    config = write_corpus(Path("corpus"), PAIRS).replace(vocabulary=VocabularyConfig(kind="word"))
    data = prepare(config).data
    assert not list(data.folder.glob("*starts*"))
    with pytest.raises(DataError, match="whole words"):
        data.word_starts("train", "src")


def test_a_folder_of_an_older_format_is_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    folder = prepare(config).folder
    new = {path.name: path.read_bytes() for path in folder.iterdir()}
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"format": {FORMAT}', '"format": 1'))
    for starts in folder.glob("*starts*"):
        starts.unlink()
    with pytest.raises(DataError, match="another format") as raised:
        open_prepared(folder)
    assert "prepare again" in (raised.value.hint or "")
    assert prepare(config).fresh
    assert "preparing anew" in caplog.text
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == new


def test_unicode_separators_do_not_split_a_line() -> None:
    odd = ("Ein Hund\u2028läuft\x85schnell\x0bweg.", "A dog runs\x0cfast.")
    data = prepare(write_corpus(Path("corpus"), PAIRS, val=[PAIRS[0], odd, PAIRS[1]])).data
    assert data.manifest.counts["val"].pairs_read == 3
    assert data.sources("val")[1] == odd[0]


def test_vocabularies_come_from_the_training_split_alone() -> None:
    config = write_corpus(Path("corpus"), PAIRS, val=[("Qualle", "jellyfish")])
    data = prepare(
        config.replace(
            vocabulary=VocabularyConfig(kind="word", joint=False), model={"share_embeddings": "none"}
        )
    ).data
    assert not any("Qualle" in piece for piece in data.src_vocabulary.pieces)
    counts = data.manifest.counts["val"]
    assert (counts.src_unknown, counts.src_tokens) == (1, 1)


def test_both_vocabularies_and_every_pair_survive_the_building() -> None:
    config = write_corpus(Path("corpus"), [(f"Wort{i} eins", f"word{i} one") for i in range(100)])
    words = VocabularyConfig(kind="word", joint=False)
    data = prepare(config.replace(vocabulary=words, model={"share_embeddings": "none"})).data
    assert min(len(data.src_vocabulary), len(data.tgt_vocabulary)) > 100
    assert len(data.split("train")) == 100


def test_a_second_prepare_does_nothing_and_changed_inputs_or_settings_make_it_anew() -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    first = prepare(config)
    assert first.fresh
    assert not prepare(config).fresh
    other = prepare(config.replace(vocabulary=VocabularyConfig(size=50)))
    assert other.fresh
    assert other.folder != first.folder
    write_corpus(Path("corpus"), [*PAIRS, ("Ein Kind lacht.", "A child laughs.")])
    again = prepare(config)
    assert again.fresh
    assert again.folder == first.folder
    assert again.data.manifest.counts["train"].pairs_read == 7


def with_extra(config: Config, pairs: list[tuple[str, str]], place: str = "more/pairs") -> Config:
    """The config with these pairs as extra ones."""
    Path(place).parent.mkdir(exist_ok=True)
    for side, lang in enumerate(("de", "en")):
        Path(f"{place}.{lang}").write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    return config.replace(data=config.data.model_copy(update={"extra": place}))


@pytest.mark.parametrize("vocabulary", [VocabularyConfig(size=60), VocabularyConfig(kind="word")])
def test_extra_pairs_are_a_split_of_their_own_and_no_part_of_the_vocabulary(
    vocabulary: VocabularyConfig,
) -> None:
    config = write_corpus(Path("corpus"), PAIRS).replace(vocabulary=vocabulary)
    without = prepare(config).data
    extra = [("Zwei Hunde.", "Two dogs."), ("", "Nothing."), ("Qualle", "jellyfish")]
    made = prepare(with_extra(config, extra))
    data = made.data
    assert made.folder != without.folder
    assert data.vocabulary_hash == without.vocabulary_hash
    assert data.extra == "train+extra"
    assert without.extra is None
    counts = data.manifest.counts["train+extra"]
    assert (counts.pairs_read, counts.pairs_kept, counts.dropped_empty) == (3, 2, 1)
    split = data.split("train+extra")
    assert detokenize(data.src_vocabulary.decode(split.src[0])) in (
        "Zwei Hunde.",
        "Zwei.",
    )  # with an unknown word
    assert len(data.split("train")) == len(PAIRS)
    assert data.tests == without.tests
    assert "train+extra" in made.table()
    kept = {path.name: path.read_bytes() for path in without.folder.iterdir() if path.name != "manifest.json"}
    assert kept.items() <= {path.name: path.read_bytes() for path in made.folder.iterdir()}.items()


def test_changed_extra_pairs_are_prepared_anew_and_absent_ones_count_as_the_same() -> None:
    config = with_extra(write_corpus(Path("corpus"), PAIRS), PAIRS[:2], "more/train")
    assert prepare(config).fresh
    assert not prepare(config).fresh
    with_extra(config, PAIRS[:1], "more/train")
    again = prepare(config)
    assert again.fresh
    assert again.data.manifest.counts["train+extra"].pairs_read == 1
    Path("more").rename("moved")
    assert not prepare(config).fresh


def test_extra_pairs_with_an_ending_in_their_name_are_told_to_go_without() -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    config = config.replace(data=config.data.model_copy(update={"extra": "corpus/train.de"}))
    with pytest.raises(DataError) as raised:
        prepare(config)
    assert raised.value.hint == "leave off the ending: --set data.extra=corpus/train"


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (None, "data.extra is more/pairs, but more does not exist"),
        ([], r"split train\+extra is empty: more/pairs.de, more/pairs.en"),
        ([("", "x")], r"every pair of train\+extra is empty on a side or longer than 128 tokens"),
    ],
)
def test_extra_pairs_that_cannot_be_had_are_refused(pairs: list[tuple[str, str]] | None, words: str) -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    if pairs is None:
        config = config.replace(data=config.data.model_copy(update={"extra": "more/pairs"}))
    else:
        config = with_extra(config, pairs)
    with pytest.raises(DataError, match=words) as raised:
        prepare(config)
    assert raised.value.hint
    assert not Path("data").exists() or not list(Path("data").glob("[!.]*"))


def test_train_prepares_anew_when_the_text_has_changed() -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    open_or_prepare(config)
    write_corpus(Path("corpus"), [*PAIRS, *PAIRS])
    _, data = open_or_prepare(config)
    assert data.manifest.counts["train"].pairs_read == 12


def test_a_prepared_folder_stands_in_for_its_corpus() -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    folder = prepare(config, out=Path("ready")).folder
    values = config.data.model_copy(update={"source": str(folder), "max_tokens": 5})
    adopted, data = open_or_prepare(config.replace(data=values))
    assert data.folder == folder
    assert adopted.data == config.data


def test_two_prepares_at_once_both_end_well_with_the_bytes_of_a_single_one(tmp_path: Path) -> None:
    config = write_corpus(tmp_path / "corpus", PAIRS * 50)
    single = prepare(config, out=tmp_path / "single").folder
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    code = (
        "from pathlib import Path; from nmt.config import load_config; from nmt.prepare import prepare;"
        "print(prepare(load_config('config.yaml'), out=Path('both')).fresh)"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = sorted(process.communicate(timeout=120)[0].strip() for process in started)
    assert [process.returncode for process in started] == [0, 0]
    assert answers == ["False", "True"]
    assert {p.name: p.read_bytes() for p in Path("both").iterdir()} == {
        p.name: p.read_bytes() for p in single.iterdir()
    }


def test_the_manifest_tells_settings_versions_hashes_and_counts() -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    summary = prepare(config)
    manifest = read_manifest(summary.folder)
    assert manifest.settings == config.data_settings()
    assert set(manifest.inputs) == {
        f"{split}.{lang}" for split in ("train", "val", "test") for lang in ("de", "en")
    }
    assert "spacy" in manifest.versions
    assert sum(manifest.counts["train"].src_lengths.values()) == 6
    assert json.loads((summary.folder / "manifest.json").read_text())["format"] == FORMAT
    for word in ("train", "val", "test", "6", "vocabulary", "tokens", str(summary.folder)):
        assert word in summary.table()


def test_files_of_unequal_length_are_refused_naming_both_counts() -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    path = Path("corpus/train.en")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=r"(?s)6.*5"):
        prepare(config)
    assert not list(Path("data").glob("corpus*"))


def test_a_vocabulary_of_specials_alone_is_refused() -> None:
    config = write_corpus(Path("corpus"), PAIRS[:3])
    words = VocabularyConfig(kind="word", min_freq=99)
    with pytest.raises(DataError, match="min_freq"):
        prepare(config.replace(vocabulary=words))


def test_a_folder_that_prepare_did_not_make_is_left_as_it_is() -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("dear")
    with pytest.raises(DataError, match="no prepared folder"):
        prepare(config, out=Path("mine"))
    assert Path("mine/thesis.txt").read_text() == "dear"


def test_a_folder_prepared_with_other_settings_is_left_as_it_is() -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    prepare(config, out=Path("mine"))
    before = read_manifest(Path("mine"))
    with pytest.raises(DataError, match="other settings"):
        prepare(config.replace(vocabulary=VocabularyConfig(size=50)), out=Path("mine"))
    assert read_manifest(Path("mine")) == before


def test_a_damaged_prepared_folder_is_made_anew() -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    folder = prepare(config).folder
    (folder / "val.tgt.txt").unlink()
    assert prepare(config).fresh
    open_prepared(folder)


@pytest.mark.parametrize(
    ("source", "message"),
    [("nowhere", "neither multi30k nor captions nor a folder"), ("empty", "train.de"), ("half", "val.de")],
)
def test_a_source_that_cannot_be_used_is_named_with_what_is_needed(source: str, message: str) -> None:
    Path("empty").mkdir()
    write_corpus(Path("half"), PAIRS)
    for path in Path("half").glob("val.*"):
        path.unlink()
    with pytest.raises(DataError) as raised:
        prepare(Config(data=DataConfig(source=source)))
    assert message in f"{raised.value.message} {raised.value.hint}"


def test_multi30k_is_not_asked_for_languages_that_it_does_not_have() -> None:
    with pytest.raises(ConfigError, match="fr"):
        prepare(Config(data=DataConfig(tgt_lang="fr")))


def test_a_missing_pipeline_is_named_before_any_work() -> None:
    config = write_corpus(Path("corpus"), PAIRS)
    data = config.data.model_copy(update={"src_pipeline": "de_core_news_absent"})
    with pytest.raises(DataError) as raised:
        prepare(config.replace(data=data))
    assert "python -m spacy download de_core_news_absent" in f"{raised.value.message} {raised.value.hint}"
    assert not list(Path("data").glob("corpus*"))


@pytest.mark.slow
@pytest.mark.skipif("NMT_MULTI30K" not in os.environ, reason="NMT_MULTI30K names no folder with Multi30k")
def test_real_multi30k_is_prepared_by_two_at_once_with_hardly_any_padding(tmp_path: Path) -> None:
    mirror = f"data.mirror={os.environ['NMT_MULTI30K']}"
    command = [sys.executable, "-m", "nmt", "prepare", "--out", "both", "-s", mirror]
    environment = {**os.environ, "NMT_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    tables = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert sum("was there already" in table for table in tables) == 1

    data = open_prepared(Path("both"))
    counts = data.manifest.counts
    assert [counts[name].pairs_kept for name in ("train", "val", "test_2016_flickr")] == [
        29_000,
        1_014,
        1_000,
    ]
    assert all("29,000" in table and "1,014" in table for table in tables)
    assert counts["train"].src_unknown == counts["train"].tgt_unknown == 0
    assert all(piece.strip() for piece in data.src_vocabulary.pieces)
    train = data.split("train")
    settings = load_config("base.yaml").train
    plan = plan_batches(train, settings.batch_tokens, seed=1, epoch=0)
    assert token_share(train, plan) >= 0.92

"""The prepared folder: whole or not there, the same bytes each time, its arrays read from disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nmt.config import Config
from nmt.data import dataset
from nmt.data.dataset import (
    PreparedData,
    Ragged,
    SplitCounts,
    SplitPart,
    open_prepared,
    prepared_folder,
    write_prepared,
)
from nmt.errors import DataError, MachineError


def parts_of(data: PreparedData, name: str, rows: int) -> Iterator[SplitPart]:
    """A prepared split as parts of so many rows."""
    split = data.split(name)
    for begin in range(0, len(split), rows):
        end = min(begin + rows, len(split))
        part = split.select(np.arange(begin, end))
        starts = None
        if name == data.train:
            src, tgt = split.src.offsets, split.tgt.offsets
            starts = (
                data.word_starts("train", "src")[src[begin] : src[end]],
                data.word_starts("train", "tgt")[tgt[begin] : tgt[end]],
            )
        yield SplitPart(part, SplitCounts.of(part, pairs_read=len(part)), starts)


def rewrite(data: PreparedData, folder: Path, rows: int = 1000) -> None:
    names = (data.train, data.val, *data.tests)
    write_prepared(
        folder,
        settings=data.manifest.settings,
        inputs=data.manifest.inputs,
        versions=data.manifest.versions,
        splits={name: parts_of(data, name, rows) for name in names},
        raw={name: (data.sources(name), data.references(name)) for name in names[1:]},
        src_vocabulary=data.src_vocabulary,
        tgt_vocabulary=data.tgt_vocabulary,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_ragged_gives_back_what_was_packed() -> None:
    sentences = [[5, 6], [], [7], [70_000, 8, 9]]
    packed = Ragged.of(sentences, 100_000)
    assert [packed[i].tolist() for i in range(len(packed))] == sentences
    assert packed.lengths.tolist() == [2, 0, 1, 3]
    assert Ragged.of(sentences[:3], 8000).ids.dtype == np.uint16


def test_sentences_are_selected_in_the_order_asked_for_and_spelt_word_by_word() -> None:
    packed = Ragged.of([[5, 6], [], [7], [8, 9, 10]], 100)
    chosen = packed.select(np.array([3, 1, 0, 3]))
    assert [chosen[i].tolist() for i in range(len(chosen))] == [[8, 9, 10], [], [5, 6], [8, 9, 10]]
    assert chosen.ids.dtype == packed.ids.dtype
    assert len(packed.select(np.array([], dtype=np.int64))) == 0
    spelt = Ragged.of([[0, 3], [], [1], [2, 2]], 4).spelt(packed)
    assert [spelt[i].tolist() for i in range(len(spelt))] == [[5, 6, 8, 9, 10], [], [], [7, 7]]


def test_the_counts_of_parts_add_up_to_those_of_the_whole(tiny_prepared: PreparedData) -> None:
    for name in ("train", "val", "test"):
        first, *others = parts_of(tiny_prepared, name, 7)
        assert sum((part.counts for part in others), first.counts) == tiny_prepared.manifest.counts[name]
        spans = list(tiny_prepared.manifest.counts[name].src_lengths)
        assert list(sum((part.counts for part in others), first.counts).src_lengths) == spans


def test_arrays_are_read_from_disk_when_they_are_used(tiny_prepared: PreparedData) -> None:
    split = tiny_prepared.split("train")
    assert isinstance(split.src.ids.base, np.memmap)
    assert not split.src.ids.flags.writeable


def test_where_words_start_is_packed_into_a_bit_an_id(tiny_prepared: PreparedData) -> None:
    for side, ragged in (
        ("src", tiny_prepared.split("train").src),
        ("tgt", tiny_prepared.split("train").tgt),
    ):
        starts = tiny_prepared.word_starts("train", side)
        assert starts.shape == ragged.ids.shape
        assert starts[ragged.offsets[:-1]].all()
        assert 0 < starts.sum() < len(starts)
        size = (tiny_prepared.folder / f"train.{side}.starts.npy").stat().st_size
        assert size < len(starts) / 8 + 130  # numpy's header is 128 bytes


@pytest.mark.parametrize("rows", [1, 3, 64, 1000])
def test_the_same_content_gives_the_same_bytes_in_whatever_parts(
    rows: int, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    rewrite(tiny_prepared, tmp_path / "again", rows)
    assert contents(tmp_path / "again") == contents(tiny_prepared.folder)


def test_arrays_have_the_bytes_that_numpy_saves(tiny_prepared: PreparedData, tmp_path: Path) -> None:
    for path in tiny_prepared.folder.glob("*.npy"):
        np.save(tmp_path / path.name, np.load(path, allow_pickle=False), allow_pickle=False)
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    assert len(list(tmp_path.iterdir())) == 14


def test_a_fault_while_writing_leaves_the_old_folder_and_nothing_else(
    tiny_prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(tiny_prepared, tmp_path / "data")
    before = contents(tmp_path / "data")

    def full_disk(path: Path, lines: list[str]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dataset, "_write_lines", full_disk)
    with pytest.raises(MachineError, match="No space left"):
        rewrite(tiny_prepared, tmp_path / "data")
    assert contents(tmp_path / "data") == before
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_rewriting_replaces_the_folder_as_a_whole(tiny_prepared: PreparedData, tmp_path: Path) -> None:
    rewrite(tiny_prepared, tmp_path / "data")
    (tmp_path / "data" / "left.over").touch()
    rewrite(tiny_prepared, tmp_path / "data")
    assert contents(tmp_path / "data") == contents(tiny_prepared.folder)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest", "format"])
def test_a_damaged_folder_is_named_and_not_used(
    damage: str, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_prepared.folder, tmp_path / "data"))
    ids, manifest = folder / "train.src.ids.npy", folder / "manifest.json"
    if damage == "truncate":
        ids.write_bytes(ids.read_bytes()[:-10])
    elif damage == "remove":
        ids.unlink()
    elif damage == "manifest":
        manifest.write_text("{")
    else:
        manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(DataError) as raised:
        open_prepared(folder)
    assert str(folder) in raised.value.message
    assert raised.value.hint


def test_a_folder_without_a_manifest_is_no_prepared_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a prepared folder"):
        open_prepared(tmp_path)


def test_an_unknown_split_is_refused_with_the_known_ones(tiny_prepared: PreparedData) -> None:
    with pytest.raises(DataError, match="train, val, test"):
        tiny_prepared.split("test_2018_flickr")
    with pytest.raises(DataError, match="has no split train"):
        tiny_prepared.references("train")  # raw text is kept for evaluation splits only


def test_the_folder_name_follows_the_data_settings_alone(tiny_config: Config) -> None:
    def name(**sections: object) -> str:
        return prepared_folder(tiny_config.replace(**sections)).name

    plain = name()
    assert name(seed=5, model=tiny_config.model, name="other") == plain
    assert name(data=tiny_config.data.model_copy(update={"mirror": "https://example.org"})) == plain
    assert name(data=tiny_config.data.model_copy(update={"src_lowercase": True})) != plain
    assert name(vocabulary=tiny_config.vocabulary.model_copy(update={"size": 301})) != plain

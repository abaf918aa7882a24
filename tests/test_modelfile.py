"""The model file: what goes in comes out, anything else is refused in one line, and nothing whole is lost."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nmt.config import Config, ModelConfig, VocabularyConfig, config_from_mapping
from nmt.data.vocabulary import SPECIALS, WordVocabulary, build_subword_vocabulary
from nmt.errors import MachineError, ModelFileError
from nmt.model.transformer import Transformer
from nmt.modelfile import (
    SHIPPED,
    Model,
    is_shipped,
    load_model,
    read_header,
    resolve_model,
    save_model,
    shipped_model,
    shipped_model_for,
    work_folder,
)

ROOT = Path(__file__).resolve().parent.parent
SHAPE = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 8, "heads": 2, "feed_forward": 12}
HINT = "multi30k-de-en comes with nmt, and nmt train --config base.yaml trains one in runs/base"
PROVENANCE = {"versions": {"spacy": "3.8"}, "step": 1200, "best": {"bleu": 39.7, "loss": None}, "note": "ä ▁"}


def make_model(share: str = "all", kind: str = "subword", **settings: Any) -> Model:
    """A small model with random weights; `none` and `target` come with two vocabularies."""
    texts = ("▁Ein ▁Hund ▁läuft .", "▁a ▁dog ▁runs .")
    if kind == "word":
        src, tgt = (WordVocabulary([*SPECIALS, *text.split()]) for text in (texts[0], texts[1] + " !"))
    else:
        src, tgt = (
            build_subword_vocabulary(Counter(text.split()), size=size)
            for text, size in zip(texts, (19, 16), strict=True)
        )
    if share == "all":
        tgt = src
    config = Config(
        vocabulary=VocabularyConfig(kind=kind, joint=share == "all"),  # type: ignore[arg-type]
        model=ModelConfig(**{**SHAPE, "share_embeddings": share, **settings}),
    )
    torch.manual_seed(0)
    network = Transformer(config.model, len(src), len(tgt))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    return Model(None, config, network, src, tgt, PROVENANCE)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_model(path, make_model())
    return path


@torch.no_grad()
def logits(network: Transformer) -> torch.Tensor:
    """What a network says to one fixed sentence and target, (1,T,V)."""
    src = torch.tensor([[5, 6, 7, 3]])
    return network.eval()(src, torch.ones_like(src, dtype=torch.bool), torch.tensor([[2, 4, 5]]))


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], object]) -> None:
    """Change the tensors and metadata of a model file in place."""
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors, metadata)
    save_file(tensors, path, metadata)


# --- there and back ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", ["word", "subword"])
@pytest.mark.parametrize("share", ["none", "target", "all"])
def test_a_loaded_model_is_the_one_that_was_saved(tmp_path: Path, share: str, kind: str, norm: str) -> None:
    model = make_model(share, kind, norm=norm, dropout=0.3)
    path = tmp_path / "model.safetensors"
    save_model(path, model)
    loaded = load_model(path)

    assert torch.equal(logits(loaded.network), logits(model.network))
    assert loaded.config == model.config
    assert loaded.provenance == model.provenance
    assert loaded.path == path
    for ours, theirs in (
        (loaded.src_vocabulary, model.src_vocabulary),
        (loaded.tgt_vocabulary, model.tgt_vocabulary),
    ):
        assert ours.to_state() == theirs.to_state()
        tokens = ["▁Ein", "▁dog", ".", "läuft", "?"]
        assert ours.encode(tokens) == theirs.encode(tokens)
    assert (loaded.src_vocabulary is loaded.tgt_vocabulary) == (share == "all")


@pytest.mark.parametrize("share", ["none", "target", "all"])
def test_shared_weights_are_stored_once_and_tied_again(tmp_path: Path, share: str) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, make_model(share))
    stored = set(load_file(path))
    assert "tgt_embedding.tokens.weight" in stored
    assert ("projection.weight" in stored) == (share == "none")
    assert ("src_embedding.tokens.weight" in stored) == (share != "all")
    network = load_model(path).network
    assert (network.projection.weight is network.tgt_embedding.tokens.weight) == (share != "none")
    assert (network.src_embedding.tokens.weight is network.tgt_embedding.tokens.weight) == (share == "all")


def test_a_loaded_network_is_in_eval_mode_and_can_be_trained_on(saved: Path) -> None:
    network = load_model(saved).network
    assert not any(part.training for part in network.modules())
    src = torch.tensor([[5, 6, 3]])
    network.train()(src, src > 0, src).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_loading_draws_no_random_numbers_and_leaves_no_weight_to_chance(saved: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    loaded = load_model(saved)
    assert torch.equal(torch.rand(1), expected)
    model = make_model()
    for (name, found), (_, wanted) in zip(
        loaded.network.named_parameters(), model.network.named_parameters(), strict=True
    ):
        assert torch.equal(found, wanted), name
    tables = [model.network.src_embedding.positions.table, loaded.network.src_embedding.positions.table]
    assert torch.equal(*tables)


def test_a_loaded_model_does_not_change_with_its_file(saved: Path) -> None:
    loaded = load_model(saved)
    before = logits(loaded.network)
    saved.write_bytes(bytes(saved.stat().st_size))
    assert torch.equal(logits(loaded.network), before)


def test_weights_are_stored_in_float32_whatever_they_were_trained_in(tmp_path: Path) -> None:
    model = make_model()
    path = tmp_path / "model.safetensors"
    save_model(path, dataclasses.replace(model, network=model.network.to(torch.bfloat16)))
    kinds = {tensor.dtype for name, tensor in load_file(path).items() if not name.endswith(".model")}
    assert kinds == {torch.float32}
    weight = load_model(path).network.projection.weight
    assert torch.equal(weight, model.network.projection.weight.float())


def test_saving_what_was_loaded_gives_the_same_tensors_and_metadata(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.safetensors"
    save_model(again, load_model(saved))
    with safe_open(saved, "pt") as one, safe_open(again, "pt") as other:
        assert one.metadata() == other.metadata()
        assert sorted(one.keys()) == sorted(other.keys())
        assert all(torch.equal(one.get_tensor(name), other.get_tensor(name)) for name in one.keys())  # noqa: SIM118


def test_the_header_is_read_without_the_weights_or_torch(saved: Path) -> None:
    header = read_header(saved)
    assert config_from_mapping(header["config"], "here") == make_model().config
    assert header["provenance"] == PROVENANCE
    code = (
        "import sys; from pathlib import Path; from nmt.modelfile import read_header, resolve_model; "
        f"path = resolve_model(Path({str(saved)!r})); print(read_header(path)['provenance']['step']); "
        "assert not {'torch', 'spacy', 'torchtext', 'sentencepiece'} & set(sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (answer.stdout, answer.stderr) == ("1200\n", "")


def test_loading_imports_nothing_that_translating_does_not_need(saved: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from nmt.modelfile import load_model; "
        f"load_model(Path({str(saved)!r})); "
        "print(*sorted({'spacy', 'torchtext', 'sentencepiece', 'sympy', 'torch._dynamo'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (answer.stdout, answer.stderr) == ("\n", "")


# --- files that are refused -------------------------------------------------------------------------------


def refusal(path: Path) -> ModelFileError:
    """The error of loading a file: one line that names it."""
    with pytest.raises(ModelFileError) as caught:
        load_model(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    error = refusal(tmp_path / "none.safetensors")
    assert error.hint == HINT
    assert "no such model file" in refusal(tmp_path).message


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_refused(saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    error = refusal(saved)
    assert "is no whole model file" in error.message
    assert error.hint is not None
    with pytest.raises(ModelFileError):
        read_header(saved)


@pytest.mark.parametrize(
    "content", [b"hello\n" * 50, bytes(range(256)) * 9, b"\x80\x04\x95" + bytes(99), b"PK\x03\x04" * 99]
)
def test_a_file_of_another_kind_is_refused(saved: Path, content: bytes) -> None:
    saved.write_bytes(content)
    refusal(saved)


def test_safetensors_of_another_program_are_refused(saved: Path) -> None:
    save_file({"weight": torch.zeros(3)}, saved)
    assert "is no model file of nmt" in refusal(saved).message
    save_file({"weight": torch.zeros(3)}, saved, {"format": "pt"})
    assert "is no model file of nmt" in refusal(saved).message


def test_a_newer_format_is_refused_naming_both(saved: Path) -> None:
    rewrite(saved, lambda tensors, metadata: metadata.update(format_version="2"))
    error = refusal(saved)
    assert "has model format 2" in error.message
    assert "reads up to 1" in error.message
    assert error.hint == "install a newer nmt"


def test_missing_and_surplus_tensors_are_refused_by_name(saved: Path) -> None:
    rewrite(saved, lambda tensors, metadata: tensors.pop("decoder.1.feed_forward.expand.bias"))
    assert refusal(saved).message.endswith("decoder.1.feed_forward.expand.bias is missing")
    save_model(saved, make_model())
    rewrite(
        saved,
        lambda tensors, metadata: tensors.update({"module.a": torch.zeros(1), "module.b": torch.zeros(1)}),
    )
    assert refusal(saved).message.endswith("module.a is no weight of it, and 1 more")


@pytest.mark.parametrize("wrong", [torch.zeros(13), torch.zeros(12, dtype=torch.float16), torch.zeros(12, 1)])
def test_a_tensor_of_the_wrong_shape_or_type_is_refused_naming_both(saved: Path, wrong: torch.Tensor) -> None:
    rewrite(saved, lambda tensors, metadata: tensors.update({"encoder.0.feed_forward.expand.bias": wrong}))
    message = refusal(saved).message
    assert message.endswith(
        f"encoder.0.feed_forward.expand.bias is {tuple(wrong.shape)} {wrong.dtype}, not (12,) torch.float32"
    )


@pytest.mark.parametrize("key", ["config", "provenance", "src_vocabulary"])
@pytest.mark.parametrize("value", [None, "{", "[]", "{}"])
def test_damaged_metadata_is_refused(saved: Path, key: str, value: str | None) -> None:
    def damage(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
        del metadata[key]
        if value is not None:
            metadata[key] = value

    rewrite(saved, damage)
    if (key, value) == ("provenance", "{}"):
        assert load_model(saved).provenance == {}
    elif (key, value) == ("config", "{}"):
        refusal(saved)  # the defaults do not fit the weights
    else:
        assert key in refusal(saved).message


def test_a_vocabulary_without_its_sentencepiece_model_is_refused(saved: Path) -> None:
    rewrite(saved, lambda tensors, metadata: tensors.pop("src_vocabulary.model"))
    assert "src_vocabulary" in refusal(saved).message


def test_a_setting_that_this_version_does_not_know_names_the_version_that_saved_it(saved: Path) -> None:
    def add_key(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
        config = json.loads(metadata["config"])
        config["model"]["experts"] = 8
        metadata.update(config=json.dumps(config), nmt_version="9.9")

    rewrite(saved, add_key)
    error = refusal(saved)
    assert "unknown key model.experts" in error.message
    assert "nmt 9.9 saved it" in (error.hint or "")


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="whoever may read everything cannot be refused"
)
def test_a_file_that_may_not_be_read_is_refused(saved: Path) -> None:
    saved.chmod(0)
    assert "Permission denied" in refusal(saved).message


# --- writing ----------------------------------------------------------------------------------------------


@contextmanager
def small_files() -> Iterator[None]:
    """No file may grow beyond 2,000 bytes; kept short, since pytest's own output may be a file."""
    resource = pytest.importorskip("resource", reason="this system has no limits of that kind")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_half_way_leaves_the_old_file_and_nothing_else(saved: Path) -> None:
    old = saved.read_bytes()
    model = make_model()
    fault = pytest.raises(MachineError, match=r"model\.safetensors could not be written: File too large")
    with fault, small_files():
        save_model(saved, model)
    assert saved.read_bytes() == old
    assert list(saved.parent.iterdir()) == [saved]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_leaves_the_old_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch, step: str, fault: BaseException
) -> None:
    def fail(*args: object) -> None:
        raise fault

    old = saved.read_bytes()
    monkeypatch.setattr(os, step, fail)
    with pytest.raises((MachineError, KeyboardInterrupt)) as caught:
        save_model(saved, make_model())
    if isinstance(fault, OSError):
        assert isinstance(caught.value, MachineError)
        assert caught.value.message == f"{saved} could not be written: No space left on device"
        assert str(saved.parent) in (caught.value.hint or "")
        assert "MB" in (caught.value.hint or "")
    assert saved.read_bytes() == old
    assert list(saved.parent.iterdir()) == [saved]


# --- finding ----------------------------------------------------------------------------------------------


def test_a_run_folder_stands_for_its_best_model_else_its_last(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="holds no model") as caught:
        resolve_model(tmp_path)
    assert caught.value.hint == HINT
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelFileError, match="is an export for CTranslate2"):
        resolve_model(tmp_path)
    last, best = tmp_path / "last.safetensors", tmp_path / "best.safetensors"
    last.touch()
    assert resolve_model(tmp_path) == last
    best.touch()
    assert resolve_model(tmp_path) == best
    assert resolve_model(last) == last


@pytest.mark.parametrize("name", ["none", "none/best.safetensors", "a\0b"])
def test_a_path_with_nothing_there_says_how_to_get_a_model(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match="no such model file or run folder") as caught:
        resolve_model(tmp_path / name)
    assert caught.value.hint == HINT


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("bas", "base"),
        ("bse", "base"),
        ("mine.safetensor", "mine.safetensors"),
    ],
)
def test_a_mistyped_path_is_told_what_lies_beside_it(tmp_path: Path, name: str, meant: str) -> None:
    (tmp_path / "base").mkdir()
    for file in ("base/best.safetensors", "mine.safetensors", "notes.txt"):
        (tmp_path / file).touch()
    with pytest.raises(ModelFileError, match="no such model file or run folder") as caught:
        resolve_model(tmp_path / name)
    assert caught.value.hint == f"did you mean {tmp_path / meant}?"


# --- the model that comes with nmt ------------------------------------------------------------------------


def test_its_name_means_it_unless_a_file_or_folder_has_that_name(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_model(Path(SHIPPED)) == shipped_model()
    with pytest.raises(ModelFileError, match="no such model file"):
        resolve_model(Path("runs") / SHIPPED)
    Path(SHIPPED).mkdir()  # as `nmt evaluate` leaves one in runs/
    assert resolve_model(Path(SHIPPED)) == shipped_model()
    best = saved.rename(Path(SHIPPED) / "best.safetensors")
    assert resolve_model(Path(SHIPPED)) == Path(SHIPPED) / best.name
    best.rename("model")
    Path(SHIPPED).rmdir()
    Path("model").rename(SHIPPED)
    assert resolve_model(Path(SHIPPED)) == Path(SHIPPED)


@pytest.mark.parametrize("name", ["multi30k-de_en", "multi30k-en-de", "multi30k-de-en.safetensors"])
def test_whoever_mistypes_its_name_is_told_it(name: str) -> None:
    with pytest.raises(ModelFileError, match="no such model file or run folder") as caught:
        resolve_model(Path(name))
    assert caught.value.hint == f"did you mean {SHIPPED}, the model that comes with nmt?"


def test_a_package_without_it_says_so_and_takes_none_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.modelfile.shipped_model", lambda: tmp_path / "gone.safetensors")
    assert shipped_model_for(Config()) is None
    with pytest.raises(ModelFileError, match=r"gone\.safetensors: no such model file"):
        resolve_model(Path(SHIPPED))


@pytest.mark.parametrize(
    ("data", "is_its"),
    [
        ({}, True),
        ({"mirror": "a folder", "max_tokens": 60, "src_lowercase": True}, True),
        ({"source": "captions"}, False),
        ({"source": "mytext"}, False),
        ({"src_lang": "fr"}, False),
        ({"src_lang": "en", "tgt_lang": "de"}, False),
    ],
)
def test_it_stands_in_for_configs_of_its_own_text_and_languages_alone(
    data: dict[str, Any], is_its: bool
) -> None:
    found = shipped_model_for(Config.model_validate({"data": data}))
    assert found == (shipped_model() if is_its else None)


def test_what_is_made_with_a_model_goes_beside_it_but_never_into_the_package(
    saved: Path, tmp_path: Path
) -> None:
    assert work_folder(saved) == saved.parent
    link = tmp_path / "package"
    link.symlink_to(shipped_model().parent, target_is_directory=True)
    for file in (shipped_model(), link / shipped_model().name):
        assert is_shipped(file)
        assert work_folder(file) == Path("runs") / SHIPPED

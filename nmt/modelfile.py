"""The model file: one safetensors file with all that translating needs.

Tensors: every weight in float32 under its name in `Transformer`, a shared one once under the first of its
names (`tgt_embedding.tokens.weight`), and for a subword vocabulary its sentencepiece model as bytes under
`src_vocabulary.model` (and `tgt_vocabulary.model` where that is another one). Metadata: `format`,
`format_version`, `nmt_version`, and as JSON `config`, `provenance`, `src_vocabulary` and, where it is another
one, `tgt_vocabulary`. An exported file may have all its weights in float16 or bfloat16: they are read as
float32.

torch is imported inside the functions, so that finding a model or reading a header costs little.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt import __version__
from nmt.config import Config, ModelConfig, config_from_mapping
from nmt.data.vocabulary import Vocabulary, VocabularyState
from nmt.errors import ConfigError, DataError, ModelFileError
from nmt.files import write_whole

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from nmt.model.transformer import Transformer

FORMAT = "nmt-model"
FORMAT_VERSION = 1
BEST, LAST = "best.safetensors", "last.safetensors"
"""The names of a run folder's models."""

SHIPPED = "multi30k-de-en"
"""The model that comes with nmt; its name stands for its file wherever a model is named."""

_SUFFIX = ".safetensors"
_OR_TRAIN = f"{SHIPPED} comes with nmt, and nmt train --config base.yaml trains one in runs/base"
_GET_IT_WHOLE = "copy the file again, or train again: nmt train --config base.yaml"


@dataclass(frozen=True, slots=True)
class Model:
    """A network with what is needed to use it.

    Provenance is free JSON: versions, data, step; `terms`, a text on who may use the weights and for what;
    and `scores`, a list of objects with split, beam, name, value and signature.
    """

    path: Path | None
    config: Config
    network: Transformer
    src_vocabulary: Vocabulary
    tgt_vocabulary: Vocabulary
    provenance: Mapping[str, Any]


def save_model(path: Path, model: Model, *, dtype: torch.dtype | None = None) -> None:
    """Write a model file so that it appears at once and whole; after a failure an older one is as it was.

    Weights are stored in `dtype`: float16, bfloat16, or float32, which None means. Raises MachineError where
    the file cannot be written.
    """
    import torch
    from safetensors.torch import save

    tensors = {
        name: weight.detach().to("cpu", dtype or torch.float32).contiguous()
        for name, weight in model.network.named_parameters()  # names a shared weight once
    }
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "nmt_version": __version__,
        "config": _to_json(model.config.model_dump(mode="json")),
        "provenance": _to_json(dict(model.provenance)),
    }
    states = {"src_vocabulary": model.src_vocabulary.to_state()}
    if (tgt_state := model.tgt_vocabulary.to_state()) != states["src_vocabulary"]:
        states["tgt_vocabulary"] = tgt_state
    for name, state in states.items():
        metadata[name] = _to_json({"kind": state.kind, "pieces": state.pieces})
        if state.model is not None:
            tensors[f"{name}.model"] = torch.frombuffer(bytearray(state.model), dtype=torch.uint8)
    write_whole(path, save(tensors, metadata))


def load_model(path: Path, device: torch.device | str = "cpu") -> Model:
    """Read a model file and build its network on a device, in eval mode.

    Raises ModelFileError where it is missing, damaged, of a newer format, or no model file.
    """
    metadata, tensors = _read(path, weights=True)
    config = _parse_config(path, metadata)
    provenance = _from_json(path, metadata, "provenance")
    src_vocabulary = _take_vocabulary(path, "src_vocabulary", metadata, tensors)
    tgt_vocabulary = src_vocabulary
    if "tgt_vocabulary" in metadata:
        tgt_vocabulary = _take_vocabulary(path, "tgt_vocabulary", metadata, tensors)
    network = blank_network(config.model, len(src_vocabulary), len(tgt_vocabulary))
    _fill(network, tensors, path)
    return Model(path, config, network.to(device).eval(), src_vocabulary, tgt_vocabulary, provenance)


def load_models(paths: Sequence[Path], device: torch.device | str = "cpu") -> tuple[Model, ...]:
    """Read a model, or several as an ensemble; raises as `load_model` and `check_ensemble`."""
    models = tuple(load_model(path, device) for path in paths)
    check_ensemble(models)
    return models


def check_ensemble(models: Sequence[Model]) -> None:
    """Raise ModelFileError, naming the differences, where models read or write other ids than the first."""
    first, *others = models
    for model in others:
        for side in ("src", "tgt"):
            if different := _different_ids(first, model, side):
                names = " and ".join(str(each.path or "a model in memory") for each in (model, first))
                raise ModelFileError(
                    f"{names} make no ensemble: they differ in {', '.join(different)}",
                    hint="train them on the same prepared data, each with a seed of its own: "
                    "nmt train -s seed=2 --run-dir DIR",
                )


def _different_ids(first: Model, second: Model, side: str) -> list[str]:
    """What makes one side's ids of two models mean different things."""
    data, other = first.config.data, second.config.data
    names = [f"{side}_{key}" for key in ("lang", "pipeline", "lowercase")]
    different = [f"data.{name}" for name in names if getattr(data, name) != getattr(other, name)]
    vocabularies = (getattr(model, f"{side}_vocabulary").to_state() for model in (first, second))
    if len({(state.kind, tuple(state.pieces), state.model) for state in vocabularies}) > 1:
        different.append("source vocabulary" if side == "src" else "target vocabulary")
    return different


def read_header(path: Path) -> dict[str, Any]:
    """A model file's `config` and `provenance` as plain values, without its weights; raises as `load_model`.

    `config_from_mapping` makes a Config of the first.
    """
    metadata, _ = _read(path, weights=False)
    return {key: _from_json(path, metadata, key) for key in ("config", "provenance")}


def resolve_model(path: Path) -> Path:
    """The model file that a path means: itself, or a run folder's best model, else its last.

    `SHIPPED` means the model that comes with nmt, unless a model file or run folder has that name. Raises
    ModelFileError where there is none.
    """
    path = shipped_model() if is_shipped_name(path) else path
    if os.path.isfile(path):  # Path.is_file raises where a folder above may not be entered
        return path
    if not os.path.isdir(path):
        raise ModelFileError(f"{path}: no such model file or run folder", hint=_meant(path) or _OR_TRAIN)
    for name in (BEST, LAST):
        if os.path.isfile(path / name):
            return path / name
    if os.path.isfile(path / "model.bin"):
        raise ModelFileError(f"{path} is an export for CTranslate2", hint="its README.md tells how to run it")
    raise ModelFileError(f"{path} holds no model: neither {BEST} nor {LAST}", hint=_OR_TRAIN)


def _meant(path: Path) -> str | None:
    """What may have been meant by a path with nothing there, as a question."""

    def nearest(names: Sequence[str]) -> str | None:
        return next(iter(difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)), None)

    if path.name == str(path) and nearest([SHIPPED]):
        return f"did you mean {SHIPPED}, the model that comes with nmt?"
    try:
        beside = [
            each.name for each in path.parent.iterdir() if os.path.isdir(each) or each.suffix == _SUFFIX
        ]
    except OSError:
        return None
    name = nearest(beside)
    return name and f"did you mean {path.with_name(name)}?"


def shipped_model() -> Path:
    """The file of the model that comes with nmt; a package that was built without it lacks it."""
    return Path(__file__).with_name("pretrained") / f"{SHIPPED}.safetensors"


def is_shipped_name(path: Path) -> bool:
    """Whether a path is the name of the model that comes with nmt, and of no other model."""
    return str(path) == SHIPPED and not any(map(os.path.isfile, (path, path / BEST, path / LAST)))


def is_shipped(file: Path) -> bool:
    """Whether a model file is the one that comes with nmt."""
    return os.path.realpath(file) == os.path.realpath(shipped_model())


def shipped_model_for(config: Config) -> Path | None:
    """The model that comes with nmt, if it learned from the text that `config` names; else None."""
    file = shipped_model()
    if not os.path.isfile(file):
        return None
    trained = read_header(file)["config"]["data"]
    is_same = all(trained[key] == getattr(config.data, key) for key in ("source", "src_lang", "tgt_lang"))
    return file if is_same else None


def model_name(file: Path) -> str:
    """A model file as people are told of it."""
    return f"{SHIPPED}, which comes with nmt," if is_shipped(file) else str(file)


def work_folder(file: Path) -> Path:
    """The folder for what is made with a model: its own, but nothing is written into an installed package."""
    return Path("runs") / SHIPPED if is_shipped(file) else file.parent


def _read(path: Path, *, weights: bool) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and, if asked for, tensors of a model file of a format that this nmt knows."""
    from safetensors import SafetensorError, safe_open

    if not os.path.isfile(path):
        raise ModelFileError(f"{path}: no such model file", hint=_OR_TRAIN)
    try:
        path.open("rb").close()  # says what is wrong, where safe_open calls every fault a missing file
        with safe_open(path, framework="pt" if weights else "numpy") as file:
            metadata = file.metadata() or {}
            _check_format(path, metadata)
            names = file.keys() if weights else ()
            return metadata, {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        if path.suffix in (".yaml", ".yml"):
            raise ModelFileError(f"{path} is a config, not a model", hint="name it with --config") from error
        raise ModelFileError(f"{path} is no whole model file: {error}", hint=_GET_IT_WHOLE) from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    version = metadata.get("format_version", "")
    if metadata.get("format") != FORMAT or not version.isdecimal():
        raise ModelFileError(f"{path} is no model file of nmt: its metadata is another program's")
    if int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has model format {version}; this nmt {__version__} reads up to {FORMAT_VERSION}",
            hint="install a newer nmt",
        )


def _parse_config(path: Path, metadata: Mapping[str, str]) -> Config:
    settings = _from_json(path, metadata, "config")
    try:
        return config_from_mapping(settings, str(path))
    except ConfigError as error:
        hint = f"nmt {metadata.get('nmt_version', 'of another version')} saved it; this is nmt {__version__}"
        raise ModelFileError(error.message, hint=hint) from error


def _take_vocabulary(
    path: Path, name: str, metadata: Mapping[str, str], tensors: dict[str, Tensor]
) -> Vocabulary:
    """Build a vocabulary from the metadata and from its own tensor, which is removed from `tensors`."""
    fields = _from_json(path, metadata, name)
    model = tensors.pop(f"{name}.model", None)
    content = None if model is None else model.numpy().tobytes()
    try:
        return Vocabulary.from_state(VocabularyState(fields["kind"], fields["pieces"], content))
    except (KeyError, DataError) as error:
        raise ModelFileError(f"{path} is damaged: {name}: {error}", hint=_GET_IT_WHOLE) from error


def blank_network(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> Transformer:
    """A network whose random weights are not drawn, which would take longer than reading the file.

    Building it on torch's meta device would skip them too, but imports much more than it saves.
    """
    import torch
    from torch import nn
    from torch.overrides import TorchFunctionMode

    from nmt.model.transformer import Transformer

    draws = (
        nn.init.normal_,
        nn.init.uniform_,
        nn.init.kaiming_uniform_,
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
    )

    class WithoutDraws(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return None if func in draws else func(*args, **(kwargs or {}))

    with WithoutDraws():
        return Transformer(config, src_vocab_size, tgt_vocab_size)


def _fill(network: Transformer, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy the tensors into the weights of the same names; ModelFileError unless they fit one to one."""
    import torch

    weights = dict(network.named_parameters())
    if fault := _misfit(weights, tensors):
        raise ModelFileError(f"{path} does not fit its own config: {fault}", hint=_GET_IT_WHOLE)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[name])


def _misfit(weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str | None:
    """What is wrong with the tensors that are to be the weights, or None."""
    import torch

    if missing := sorted(weights.keys() - tensors.keys()):
        return f"{missing[0]} is missing" + (f", and {len(missing) - 1} more" if missing[1:] else "")
    if extra := sorted(tensors.keys() - weights.keys()):
        return f"{extra[0]} is no weight of it" + (f", and {len(extra) - 1} more" if extra[1:] else "")
    halves = {tensor.dtype for tensor in tensors.values()} in ({torch.float16}, {torch.bfloat16})
    for name, weight in weights.items():
        tensor = tensors[name]
        if tensor.shape != weight.shape or not (halves or tensor.dtype == weight.dtype):
            found, wanted = (f"{tuple(t.shape)} {t.dtype}" for t in (tensor, weight))
            return f"{name} is {found}, not {wanted}"
    return None


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _from_json(path: Path, metadata: Mapping[str, str], key: str) -> dict[str, Any]:
    try:
        value = json.loads(metadata[key])
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged: its {key} cannot be read", hint=_GET_IT_WHOLE) from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} is damaged: its {key} holds no settings", hint=_GET_IT_WHOLE)
    return value

"""Training and decoding beside JoeyNMT 2.3.0, in an environment of its own.

It gets the same batches, and for decoding the same weights, so that its BLEU must be nmt's.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from benchmarks.base import (
    BATCH_SIZES,
    BEAMS,
    Bench,
    ProgramError,
    Section,
    precisions,
    search_name,
    seconds_of,
)
from benchmarks.decoding import Decoder, decoder_of, longest_translation
from benchmarks.training import Runner, Steps, Training, training_race
from nmt.config import Config
from nmt.data.batching import Rows
from nmt.data.dataset import Ragged
from nmt.data.vocabulary import EOS, UNK
from nmt.decoding.state import Hypothesis
from nmt.model.positions import sinusoids
from nmt.model.transformer import Transformer

JOEYNMT = "JoeyNMT 2.3.0"
REQUIREMENTS = ("joeynmt==2.3.0", "importlib_metadata", "sentencepiece==0.2.0")
NMT_ENVIRONMENT = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
"""What nmt sets for itself: JoeyNMT runs without it."""
TRAINING_TITLE = f"training beside {JOEYNMT}"
DECODING_TITLE = f"decoding beside {JOEYNMT}"


@dataclass(frozen=True, slots=True)
class JoeyNMT:
    """JoeyNMT in an environment of its own, its data the prepared ids, written as words t4, t5, …

    So that its tokens are exactly nmt's, and the special ones have the same numbers in both.
    """

    python: Path
    bench: Bench
    folder: Path

    @classmethod
    def installed(cls, bench: Bench) -> tuple[JoeyNMT | None, tuple[str, ...]]:
        """JoeyNMT, installed first where it is not there yet; or None and why not."""
        environment = bench.work / "joeynmt"
        python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        ready = environment / "ready"
        if not ready.exists():
            version = torch.__version__.partition("+")[0]
            commands = (
                (sys.executable, "-m", "venv", str(environment)),
                (str(python), "-m", "pip", "install", "--quiet", f"torch=={version}", *REQUIREMENTS),
                (str(python), "-c", "import joeynmt.training"),
            )
            for command in commands:
                answer = subprocess.run(command, capture_output=True, encoding="utf-8")
                if answer.returncode:
                    words = (answer.stderr.strip() or f"exit code {answer.returncode}").splitlines()[-1]
                    return None, (f"{JOEYNMT} could not be installed: {words}",)
            ready.touch()
        folder = bench.folder / "joeynmt"
        if not folder.exists():
            folder.mkdir()
            _write_data(bench, folder)
        return cls(python, bench, folder), ()

    def steps(self, plan: Sequence[Rows]) -> Steps:
        """JoeyNMT's own training, from its start, on the batches of a plan."""
        self._write_test([[EOS + 1]])
        seconds = self._run("train", [rows.tolist() for rows in plan])
        split = self.bench.data.split(self.bench.data.train)
        return Steps(seconds, [int((split.tgt.lengths[rows] + 1).sum()) for rows in plan])

    def translations(
        self, decoder: Decoder, sentences: Sequence[Sequence[int]], jobs: Sequence[tuple[int, int]]
    ) -> list[tuple[float, list[Hypothesis]]]:
        """Seconds and translations by the decoder's weights, for each (beam, sentences a batch)."""
        weights = joeynmt_weights(decoder.system.model.network)
        torch.save({"model_state": weights}, self.folder / "model.ckpt")
        self._write_test(sentences)
        return [
            (seconds, [as_hypothesis(tokens) for tokens in found])
            for seconds, found in self._run("decode", list(jobs))
        ]

    def _write_test(self, sentences: Sequence[Sequence[int]]) -> None:
        for side in ("src", "trg"):  # no reference is read: BLEU is taken here
            write_words(self.folder / f"test.{side}", sentences)

    def _run(self, task: str, request: Any) -> Any:
        config, asked, answer = (
            self.folder / name for name in ("config.yaml", "request.json", "answer.json")
        )
        config.write_text(yaml.safe_dump(joeynmt_config(self.bench, self.folder)), encoding="utf-8")
        asked.write_text(json.dumps(request), encoding="utf-8")
        script = Path(__file__).with_name("joeynmt_driver.py")
        # -P: this folder has a joeynmt of its own
        command = (str(self.python), "-P", str(script), task, str(config), str(asked), str(answer))
        environ = {name: value for name, value in os.environ.items() if name not in NMT_ENVIRONMENT}
        done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environ)
        if done.returncode:
            raise ProgramError(f"{JOEYNMT} failed: {done.stderr.strip()[-2000:]}")
        return json.loads(answer.read_text(encoding="utf-8"))


def _write_data(bench: Bench, folder: Path) -> None:
    data = bench.data
    for name, split in (("train", data.split(data.train)), ("dev", data.split(data.val))):
        for side, ids in (("src", split.src), ("trg", split.tgt)):
            write_words(folder / f"{name}.{side}", rows_of(ids))
    for side, vocabulary in (("src", data.src_vocabulary), ("trg", data.tgt_vocabulary)):
        words = "".join(f"t{token}\n" for token in range(EOS + 1, len(vocabulary)))
        (folder / f"vocabulary.{side}").write_text(words, encoding="utf-8")


def rows_of(ids: Ragged) -> list[list[int]]:
    """Every sentence as a list."""
    return [ids[row].tolist() for row in range(len(ids))]


def write_words(path: Path, sentences: Sequence[Sequence[int]]) -> None:
    """One sentence a line, each id as a word."""
    lines = (" ".join("<unk>" if i == UNK else f"t{i}" for i in ids) for ids in sentences)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def as_hypothesis(tokens: Sequence[str]) -> Hypothesis:
    """What JoeyNMT says, as nmt's ids."""
    ids = tuple(UNK if token == "<unk>" else int(token[1:]) for token in tokens if token != "</s>")
    return Hypothesis(ids, 0.0, 0.0, True)


def joeynmt_config(bench: Bench, folder: Path) -> dict[str, Any]:
    """The same network, loss and search as JoeyNMT's settings."""
    config = bench.config
    model, train, decode = config.model, config.train, config.decode

    def stack(layers: int) -> dict[str, Any]:
        return {
            "type": "transformer",
            "num_layers": layers,
            "num_heads": model.heads,
            "hidden_size": model.d_model,
            "ff_size": model.feed_forward,
            "dropout": model.dropout,
            "layer_norm": model.norm,
            "activation": model.activation.removesuffix("_tanh"),
            "embeddings": {"embedding_dim": model.d_model, "scale": True, "dropout": model.dropout},
        }

    def side(name: str) -> dict[str, Any]:
        file = str(folder / f"vocabulary.{name}")
        return {"lang": name, "level": "word", "voc_file": file, "max_length": -1}

    return {
        "name": "benchmark",
        "joeynmt_version": "2.3.0",
        "model_dir": str(folder / "run"),
        "use_cuda": bench.device.type == "cuda",
        "fp16": False,
        "random_seed": config.seed,
        "data": {
            **{split: str(folder / split) for split in ("train", "dev", "test")},
            "dataset_type": "plain",
            "src": side("src"),
            "trg": side("trg"),
        },
        "model": {
            "tied_embeddings": model.share_embeddings == "all",
            "tied_softmax": model.share_embeddings != "none",
            "encoder": stack(model.encoder_layers),
            "decoder": stack(model.decoder_layers),
        },
        "training": {
            "optimizer": "adamw",
            "learning_rate": 1e-4,
            "learning_rate_min": 1e-9,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 400,
            "adam_betas": list(train.betas),
            "label_smoothing": train.label_smoothing,
            "clip_grad_norm": train.clip_norm or 1.0,
            "batch_size": train.batch_tokens,
            "batch_type": "token",
            "normalization": "tokens",
            "epochs": 1,
            "logging_freq": 1000,
            "validation_freq": 10**6,
        },
        "testing": {
            "load_model": str(folder / "model.ckpt"),
            "beam_alpha": decode.length_penalty,
            "max_output_length": longest_translation(bench, decode),
            "eval_metrics": [],
        },
    }


def fits_joeynmt(config: Config) -> bool:
    """Whether JoeyNMT's network can hold the weights of this one."""
    model = config.model
    needed = {
        "norm": "pre",
        "positions": "sinusoidal",
        "share_embeddings": "all",
        "scale": "emb",
        "activation": "relu",
        "projection_bias": True,
        "output_bias": False,
        "embedding_norm": False,
        "head_width": None,
        "value_width": None,
    }
    return model.has_final_norm and all(getattr(model, key) == value for key, value in needed.items())


def joeynmt_weights(network: Transformer) -> dict[str, Tensor]:
    """A network's weights under JoeyNMT's names."""
    table = network.tgt_embedding.tokens.weight
    positions = sinusoids(5000, table.size(1))[None]
    found = {
        **{f"{name}.weight": table for name in ("src_embed.lut", "trg_embed.lut", "decoder.output_layer")},
        **{f"{name}.pe.pe": positions for name in ("encoder", "decoder")},
        **_joined("encoder.layer_norm", network.encoder_norm),
        **_joined("decoder.layer_norm", network.decoder_norm),
    }
    for index, layer in enumerate(network.encoder):
        name = f"encoder.layers.{index}"
        found |= _layer_weights(name, layer)
        found |= _joined(f"{name}.layer_norm", layer.self_attention_residual.norm)
        found |= _attention_weights(f"{name}.src_src_att", layer.self_attention)
    for index, layer in enumerate(network.decoder):
        name = f"decoder.layers.{index}"
        found |= _layer_weights(name, layer)
        found |= _joined(f"{name}.x_layer_norm", layer.self_attention_residual.norm)
        found |= _joined(f"{name}.dec_layer_norm", layer.cross_attention_residual.norm)
        found |= _attention_weights(f"{name}.trg_trg_att", layer.self_attention)
        found |= _attention_weights(f"{name}.src_trg_att", layer.cross_attention)
    return {name: weight.detach().cpu().clone() for name, weight in found.items()}


def _layer_weights(name: str, layer: Any) -> dict[str, Tensor]:
    return {
        **_joined(f"{name}.feed_forward.layer_norm", layer.feed_forward_residual.norm),
        **_joined(f"{name}.feed_forward.pwff_layer.0", layer.feed_forward.expand),
        **_joined(f"{name}.feed_forward.pwff_layer.3", layer.feed_forward.contract),
    }


def _attention_weights(name: str, attention: Any) -> dict[str, Tensor]:
    found = _joined(f"{name}.q_layer", attention.query) | _joined(f"{name}.output_layer", attention.output)
    for kind, packed in _joined("", attention.key_value).items():
        keys, values = torch.split(packed, list(attention.widths))
        found |= {f"{name}.k_layer{kind}": keys, f"{name}.v_layer{kind}": values}
    return found


def _joined(name: str, module: Any) -> dict[str, Tensor]:
    return {f"{name}.weight": module.weight, f"{name}.bias": module.bias}


def joeynmt_training_section(bench: Bench) -> Section:
    """Training of nmt, in each precision, and of JoeyNMT, which knows float32 and on a GPU float16."""
    joeynmt, notes = JoeyNMT.installed(bench)
    if joeynmt is None:
        return Section(TRAINING_TITLE, {}, {}, notes)
    runners: dict[str, Runner] = {
        f"nmt, {name}": Training(bench, dtype).steps for name, dtype in precisions(bench)
    }
    runners[f"{JOEYNMT}, float32"] = joeynmt.steps
    note = "its steps include making the batches from words, as nmt's include padding them"
    return training_race(bench, TRAINING_TITLE, runners, (note,))


def joeynmt_decoding_section(bench: Bench) -> Section:
    """Sentences a second and BLEU of the same weights in nmt and in JoeyNMT, at its best batch sizes."""
    decoder = decoder_of(bench)
    joeynmt, notes = _joeynmt_for(bench, decoder)
    if joeynmt is None:
        return Section(DECODING_TITLE, {}, {}, notes)
    sizes = _best_batch_sizes(bench, joeynmt, decoder)
    seconds: dict[str, list[float]] = {}
    scores: dict[str, float] = {}
    for _ in range(bench.rounds):
        answers = [
            seconds_of(functools.partial(decoder.translate, decoder.sentences, beam=beam), bench.device)
            for beam in BEAMS
        ]
        answers += joeynmt.translations(decoder, decoder.sentences, list(sizes.items()))
        for name, (spent, found) in zip(_decoding_names(), answers, strict=True):
            seconds.setdefault(name, []).append(spent)
            scores[f"{name}: BLEU"] = decoder.bleu(found)
    speeds = {name: len(decoder.sentences) / statistics.median(each) for name, each in seconds.items()}
    ratios = {
        f"{search_name(beam)}: speed of nmt / {JOEYNMT}": speeds[f"nmt, {search_name(beam)}"]
        / speeds[f"{JOEYNMT}, {search_name(beam)}"]
        for beam in BEAMS
    }
    figures = {f"{name}: sentences/s": speed for name, speed in speeds.items()} | scores
    notes = tuple(
        f"{search_name(beam)}: JoeyNMT's best are batches of {size}" for beam, size in sizes.items()
    )
    return Section(DECODING_TITLE, ratios, figures, notes)


def _joeynmt_for(bench: Bench, decoder: Decoder) -> tuple[JoeyNMT | None, tuple[str, ...]]:
    """JoeyNMT, where it can decode with this model; or None and why not."""
    if not bench.trained:
        return None, ("not measured: name a trained model with --model",)
    if not fits_joeynmt(decoder.system.model.config):
        return None, ("not measured: its network cannot hold this one's weights",)
    return JoeyNMT.installed(bench)


def _decoding_names() -> list[str]:
    return [f"{program}, {search_name(beam)}" for program in ("nmt", JOEYNMT) for beam in BEAMS]


def _best_batch_sizes(bench: Bench, joeynmt: JoeyNMT, decoder: Decoder) -> dict[int, int]:
    """By beam the batch size at which JoeyNMT is fastest on some sentences."""
    sizes = BATCH_SIZES[:1] if bench.quick else BATCH_SIZES
    jobs = [(beam, size) for beam in BEAMS for size in sizes]
    answers = joeynmt.translations(decoder, decoder.sentences[: max(sizes)], jobs)
    seconds = {job: spent for job, (spent, _) in zip(jobs, answers, strict=True)}
    return {beam: min(sizes, key=lambda size, beam=beam: seconds[beam, size]) for beam in BEAMS}

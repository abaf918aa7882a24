"""`train` from text to a model file: small data, the run folder, going on, no spaCy where none is needed."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import sacrebleu
import torch
from torch import Tensor

from nmt.config import Config, DataConfig, ModelConfig, TrainConfig, VocabularyConfig, load_config
from nmt.data.batching import Batch, make_batch, plan_batches, without_specials
from nmt.data.corpus import Pair
from nmt.data.text import detokenize
from nmt.data.vocabulary import PAD
from nmt.errors import CheckpointError, ConfigError, DataError, MachineError, RunError
from nmt.modelfile import load_model, read_header
from nmt.prepare import prepare
from nmt.train import draw_translations, train
from nmt.training.risk import Drawn
from nmt.training.step import Draw, Stepper, Work
from nmt.training.tracking import read_events
from nmt.training.trainer import Trainer
from nmt.translate import Translator

if TYPE_CHECKING:
    from nmt.data.dataset import PreparedData

ROOT = Path(__file__).resolve().parent.parent
SMALL = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=32, heads=4, feed_forward=64, dropout=0.0)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(folder: Path, pairs: list[Pair], val: list[Pair] | None = None) -> Path:
    folder.mkdir()
    for split, chosen in (("train", pairs), ("val", val or pairs[:3]), ("test", val or pairs[:3])):
        (folder / f"{split}.de").write_text("".join(f"{pair.source}\n" for pair in chosen), "utf-8")
        (folder / f"{split}.en").write_text("".join(f"{pair.target}\n" for pair in chosen), "utf-8")
    return folder


def small_config(source: Path | str, model: ModelConfig = SMALL, **settings: object) -> Config:
    return Config(
        name="small",
        device="cpu",
        precision="float32",
        data=DataConfig(source=str(source)),
        vocabulary=VocabularyConfig(size=200),
        model=model,
        train=TrainConfig.model_validate(
            {
                "epochs": 2,
                "warmup_steps": 5,
                "ema_decay": None,
                "subword_dropout": 0.0,
                "rare_words": 0.0,
                **settings,
            }
        ),
    )


@pytest.mark.slow
def test_twenty_pairs_are_learnt_by_heart_each_with_its_own_answer(
    caption_pairs: dict[str, list[Pair]],
) -> None:
    pairs = caption_pairs["train"][:400:20]
    model = ModelConfig(
        encoder_layers=2, decoder_layers=2, d_model=64, heads=4, feed_forward=128, dropout=0.0
    )
    config = small_config(
        write(Path("corpus"), pairs),
        model,
        epochs=120,
        learning_rate=3e-3,
        label_smoothing=0.0,
        batch_tokens=300,
        validate_every_epochs=60,
    )
    result = train(config)
    answers = [
        t.text for t in Translator.load(result.model, device="cpu").translate([p.source for p in pairs])
    ]
    assert sum(answer == pair.target for answer, pair in zip(answers, pairs, strict=True)) >= 18
    assert len(set(answers)) >= 18


def test_three_pairs_in_a_batch_for_thousands_train_with_a_finite_loss(
    caption_pairs: dict[str, list[Pair]],
) -> None:
    result = train(small_config(write(Path("corpus"), caption_pairs["train"][:3])))
    losses = [e["loss"] for e in read_events(result.run_dir / "metrics.jsonl") if e["event"] != "time"]
    assert result.steps == 2
    assert all(0 < loss < 100 for loss in losses)


def test_a_blank_source_line_in_training_leaves_the_loss_finite(caption_pairs: dict[str, list[Pair]]) -> None:
    folder = write(Path("corpus"), caption_pairs["train"][:5])
    for lang, line in (("de", " \u00a0\n"), ("en", "Nothing.\n")):
        with (folder / f"train.{lang}").open("a", encoding="utf-8") as file:
            file.write(line)
    result = train(small_config(folder))
    losses = [e["loss"] for e in read_events(result.run_dir / "metrics.jsonl") if e["event"] != "time"]
    assert losses
    assert all(loss > 0 for loss in losses)


def test_a_run_folder_holds_what_it_should(tiny_prepared: PreparedData) -> None:
    result = train(small_config(tiny_prepared.folder))
    names = {path.name for path in result.run_dir.iterdir()}
    assert names - {".lock", "tensorboard"} == {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "curves.png",
        "checkpoints",
        "best.safetensors",
        "last.safetensors",
    }
    assert load_config(result.run_dir / "config.yaml").train.epochs == 2
    assert result.model == result.run_dir / "best.safetensors"
    assert (result.run_dir / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert not [path for path in result.run_dir.rglob("*") if path.suffix in (".pt", ".pth", ".pkl")]


def test_a_folder_that_holds_a_run_is_refused_naming_both_ways_on(tiny_prepared: PreparedData) -> None:
    config = small_config(tiny_prepared.folder)
    first = train(config)
    before = {path: path.read_bytes() for path in first.run_dir.rglob("*") if path.is_file()}
    with pytest.raises(RunError) as raised:
        train(config)
    assert "--resume" in str(raised.value.hint)
    assert "--overwrite" in str(raised.value.hint)
    assert {path: path.read_bytes() for path in first.run_dir.rglob("*") if path.is_file()} == before


def test_overwriting_starts_anew_and_leaves_what_is_not_its_own(tiny_prepared: PreparedData) -> None:
    config = small_config(tiny_prepared.folder)
    first = train(config)
    (first.run_dir / "notes.txt").write_text("mine")
    again = train(config, overwrite=True)
    steps = [event["step"] for event in read_events(again.run_dir / "metrics.jsonl")]
    assert steps == sorted(steps)
    assert again.steps == first.steps
    assert (first.run_dir / "notes.txt").read_text() == "mine"


def test_a_fault_before_training_leaves_an_overwritten_run_whole(tiny_prepared: PreparedData) -> None:
    config = small_config(tiny_prepared.folder)
    first = train(config)
    with pytest.raises(DataError):
        train(config.replace(data=config.data.model_copy(update={"source": "nowhere"})), overwrite=True)
    assert first.model.exists()


def test_more_epochs_go_on_and_another_model_is_refused_naming_the_key(tiny_prepared: PreparedData) -> None:
    config = small_config(tiny_prepared.folder)
    first = train(config)
    more = train(small_config(tiny_prepared.folder, epochs=3), resume=True)
    assert more.steps == first.steps // 2 * 3
    with pytest.raises(ConfigError, match=r"model\.d_model"):
        train(config.replace(model=SMALL.model_copy(update={"d_model": 64})), resume=True)


def test_another_vocabulary_is_refused_before_anything_is_prepared(
    caption_pairs: dict[str, list[Pair]],
) -> None:
    config = small_config(write(Path("corpus"), caption_pairs["train"][:50]), epochs=1)
    train(config)
    prepared = sorted(Path("data").iterdir())
    words = config.vocabulary.model_copy(update={"kind": "word"})
    with pytest.raises(ConfigError, match=r"vocabulary\.kind"):
        train(config.replace(vocabulary=words), resume=True)
    assert sorted(Path("data").iterdir()) == prepared


@pytest.mark.parametrize(
    "key", ["batch_tokens", "batch_sentences", "subword_dropout", "rare_words", "extra_share"]
)
def test_within_an_epoch_what_makes_other_batches_is_refused_by_name(
    key: str, tiny_prepared: PreparedData
) -> None:
    settings = {"epochs": 3, "batch_tokens": 300}
    config = small_config(tiny_prepared.folder, **settings)
    stop_in_step(3, config)
    before = Path("runs/small/config.yaml").read_bytes()
    value = 100 if key.startswith("batch") else 0.1
    with pytest.raises(ConfigError, match=rf"within an epoch.*train\.{key} \(.* there, {value} now\)"):
        train(small_config(tiny_prepared.folder, **{**settings, key: value}), resume=True)
    assert Path("runs/small/config.yaml").read_bytes() == before
    assert train(config, resume=True).stopped_by is None


def test_behind_an_epoch_other_batches_go_through_and_other_settings_are_named(
    tiny_prepared: PreparedData, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nmt")
    train(small_config(tiny_prepared.folder, epochs=1))
    other = small_config(tiny_prepared.folder, epochs=2, batch_tokens=500).replace(seed=2)
    train(other, resume=True)
    assert "seed (1 there, 2 now)" in caplog.text
    assert "train.batch_tokens (4096 there, 500 now)" in caplog.text
    assert "model." not in caplog.text
    steps = [
        event["step"]
        for event in read_events(Path("runs/small/metrics.jsonl"))
        if event["event"] == "validation"
    ]
    assert f"going on from step {steps[0]} of {steps[1]}" in caplog.text, (
        "the plan is that of the new batches"
    )


def with_extra(config: Config, pairs: list[Pair]) -> Config:
    """The config with these pairs as extra ones."""
    Path("more").mkdir(exist_ok=True)
    Path("more/pairs.de").write_text("".join(f"{pair.source}\n" for pair in pairs), "utf-8")
    Path("more/pairs.en").write_text("".join(f"{pair.target}\n" for pair in pairs), "utf-8")
    return config.replace(data=config.data.model_copy(update={"extra": "more/pairs"}))


def test_a_run_goes_on_with_extra_pairs_and_its_model_is_scored_without_them(
    caption_pairs: dict[str, list[Pair]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nmt")
    folder = write(Path("corpus"), caption_pairs["train"][:50])
    train(small_config(folder, epochs=1))
    more = with_extra(small_config(folder, epochs=2), caption_pairs["test"][:7])
    model = train(more, resume=True).model
    assert "data.extra (None there, 'more/pairs' now)" in caplog.text
    assert "extra pairs: 7 beside 50" in caplog.text
    header = read_header(model)
    assert header["config"]["data"]["extra"] is None
    assert header["provenance"]["data"]["extra"] == "pairs"
    alone = train(small_config(folder, epochs=1), run_dir=Path("alone"))
    train(small_config(folder, epochs=2), run_dir=alone.run_dir, resume=True)
    weights = [
        load_model(Path(run, "last.safetensors")).network.state_dict() for run in ("runs/small", "alone")
    ]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_extra_pairs_within_an_epoch_are_refused(caption_pairs: dict[str, list[Pair]]) -> None:
    config = small_config(write(Path("corpus"), caption_pairs["train"][:50]), epochs=3, batch_tokens=300)
    stop_in_step(3, config)
    with pytest.raises(ConfigError, match=r"within an epoch.*data\.extra \(None there, 'more/pairs' now\)"):
        train(with_extra(config, caption_pairs["test"][:7]), resume=True)


def test_a_prepared_folder_without_the_extra_pairs_that_are_asked_for_is_refused(
    tiny_prepared: PreparedData,
) -> None:
    data = DataConfig(source=str(tiny_prepared.folder), extra="more/pairs")
    with pytest.raises(ConfigError, match=r"prepared without data\.extra \(more/pairs\)"):
        train(small_config(tiny_prepared.folder).replace(data=data))


def test_an_overwritten_run_is_only_deleted_when_the_new_one_can_begin(
    tiny_prepared: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tiny_prepared.folder, epochs=1)
    before = train(config).model.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("nmt.train.Transformer", fail)
    with pytest.raises(MemoryError):
        train(config, overwrite=True)
    assert Path("runs/small/best.safetensors").read_bytes() == before


def test_a_finished_run_keeps_its_record_when_it_is_resumed(tiny_prepared: PreparedData) -> None:
    config = small_config(tiny_prepared.folder, epochs=1)
    train(config)
    record = [Path("runs/small", name).read_bytes() for name in ("config.yaml", "environment.json")]
    train(config.replace(train=config.train.model_copy(update={"learning_rate": 0.5})), resume=True)
    assert [Path("runs/small", name).read_bytes() for name in ("config.yaml", "environment.json")] == record


def stop_in_step(number: int, config: Config) -> None:
    with pytest.MonkeyPatch.context() as patch:
        original = Stepper.gradient

        def gradient(self: Stepper, work: Work, step: int, draw: Draw | None = None) -> tuple[Tensor, Tensor]:
            if step + 1 == number:
                os.kill(os.getpid(), signal.SIGTERM)
            return original(self, work, step, draw)

        patch.setattr(Stepper, "gradient", gradient)
        assert train(config).stopped_by == signal.SIGTERM


def test_a_run_that_goes_on_within_an_epoch_reads_the_same_subwords(tiny_prepared: PreparedData) -> None:
    model = SMALL.model_copy(update={"dropout": 0.2})
    settings = {"epochs": 2, "batch_tokens": 400, "subword_dropout": 0.3, "word_dropout": 0.1}
    config = small_config(tiny_prepared.folder, model, accumulation=2, **settings)
    whole = train(config.replace(name="whole"))
    stop_in_step(whole.steps - 2, config)
    broken = train(config, resume=True)
    assert broken.steps == whole.steps
    weights = [
        dict(load_model(result.run_dir / "last.safetensors").network.named_parameters())
        for result in (whole, broken)
    ]
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)


def test_resuming_a_finished_run_says_so_and_resuming_none_begins(
    tiny_prepared: PreparedData, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nmt")
    config = small_config(tiny_prepared.folder)
    first = train(config, resume=True)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "no checkpoint in runs/small: --resume starts from the beginning" in warnings
    again = train(config, resume=True)
    assert "is finished" in caplog.text
    assert again.steps == first.steps


def test_a_finished_run_counts_the_epoch_that_it_ended_in(
    tiny_prepared: PreparedData, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nmt")
    config = small_config(tiny_prepared.folder, max_steps=1, batch_sentences=3)
    train(config)
    train(config, resume=True)
    assert "is finished: 1 epochs, 1 steps" in caplog.text


def test_resuming_on_text_that_has_changed_is_refused(caption_pairs: dict[str, list[Pair]]) -> None:
    folder = write(Path("corpus"), caption_pairs["train"][:50])
    train(small_config(folder))
    (prepared,) = (path.parent for path in Path("data").rglob("manifest.json"))
    before = {path.name: path.read_bytes() for path in prepared.iterdir()}
    with (folder / "train.de").open("a") as german, (folder / "train.en").open("a") as english:
        german.write("Neue Zeilen.\n")
        english.write("New lines.\n")
    with pytest.raises(CheckpointError, match="changed"):
        train(small_config(folder, epochs=3), resume=True)
    after = {path.name: path.read_bytes() for path in prepared.iterdir()}
    assert after == before, "what the run has learned from is still there"
    prepare(small_config(folder))
    with pytest.raises(CheckpointError, match="changed"):
        train(small_config(folder, epochs=3), resume=True)


def test_a_prepared_folder_made_anew_does_not_disturb_a_running_training(
    tiny_prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(tiny_prepared.folder, tmp_path / "prepared"))
    original = Trainer._train_epoch

    def remove_first(self: Trainer, *arguments: object) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "_train_epoch", remove_first)
    assert train(small_config(folder)).best_bleu is not None


def test_a_second_training_in_the_same_folder_is_refused_while_the_first_runs(
    tiny_prepared: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tiny_prepared.folder)
    refused = []
    original = Trainer._train_epoch

    def try_another(self: Trainer, *arguments: object) -> None:
        with pytest.raises(MachineError, match="another nmt is training"):
            train(config, overwrite=True)
        refused.append(True)
        original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "_train_epoch", try_another)
    assert train(config).best_bleu is not None
    assert refused


def test_a_very_long_validation_pair_is_scored_and_left_out_of_the_loss(
    caption_pairs: dict[str, list[Pair]], caplog: pytest.LogCaptureFixture
) -> None:
    long = Pair("Hund " * 5000, "dog " * 5000)
    folder = write(Path("corpus"), caption_pairs["train"][:20], [*caption_pairs["val"][:2], long])
    assert train(small_config(folder)).best_bleu is not None
    assert "validation pairs of more than 256 tokens, left out of the loss: 1" in caplog.text


def test_the_model_file_does_not_carry_where_the_files_came_from(tiny_prepared: PreparedData) -> None:
    config = small_config(tiny_prepared.folder)
    data = config.data.model_copy(update={"mirror": "https://user:secret@example.org"})
    result = train(config.replace(data=data))
    assert b"secret" not in result.model.read_bytes()


def test_training_twice_with_one_seed_gives_the_same_model(tiny_prepared: PreparedData) -> None:
    def weights(name: str) -> dict[str, Tensor]:
        config = small_config(tiny_prepared.folder, SMALL.model_copy(update={"dropout": 0.2}), max_steps=3)
        return dict(load_model(train(config, run_dir=Path(name)).model).network.named_parameters())

    torch.testing.assert_close(weights("one"), weights("two"), rtol=0, atol=0)


def test_both_kinds_of_norm_and_every_kind_of_sharing_train(tiny_prepared: PreparedData) -> None:
    for norm, sharing in (("pre", "none"), ("post", "target"), ("post", "all")):
        model = SMALL.model_copy(update={"norm": norm, "share_embeddings": sharing})
        result = train(
            small_config(tiny_prepared.folder, model, max_steps=1), run_dir=Path(f"{norm}-{sharing}")
        )
        assert Translator.load(result.model, device="cpu").translate(["Ein Hund."])


def test_word_vocabularies_of_two_sizes_train_and_translate(caption_pairs: dict[str, list[Pair]]) -> None:
    config = small_config(
        write(Path("corpus"), caption_pairs["train"][:50]),
        SMALL.model_copy(update={"share_embeddings": "none"}),
    ).replace(vocabulary=VocabularyConfig(kind="word", joint=False, min_freq=2))
    result = train(config)
    translator = Translator.load(result.model, device="cpu")
    assert len(translator.model.src_vocabulary) != len(translator.model.tgt_vocabulary)
    assert len(translator.translate(["Ein Hund läuft.", "Donaudampfschiff!"])) == 2


@pytest.mark.slow
def test_the_hash_of_the_weights_depends_on_the_seed_and_not_on_the_hashes_of_python(
    tiny_prepared: PreparedData,
) -> None:
    model = SMALL.model_copy(update={"dropout": 0.2})
    config = small_config(tiny_prepared.folder, model, max_steps=3, subword_dropout=0.2, ema_decay=0.9)
    Path("config.yaml").write_text(config.to_yaml(), "utf-8")

    def hashes(name: str, hash_seed: str, *settings: str) -> str:
        command = [sys.executable, "-m", "nmt", "train", "--config", "config.yaml", "--run-dir", name]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([*command, *settings], env=environment, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        (weights,) = Path(name).glob("checkpoints/step-00000003/weights.safetensors")
        return hashlib.sha256(weights.read_bytes()).hexdigest()

    first = hashes("one", "0")
    assert hashes("two", "12345") == first
    assert hashes("three", "0", "--set", "seed=2") != first


@pytest.mark.slow
def test_two_steps_warn_of_nothing_and_need_neither_spacy_nor_torchtext(tiny_prepared: PreparedData) -> None:
    config = small_config(tiny_prepared.folder, SMALL.model_copy(update={"dropout": 0.1}), max_steps=2)
    Path("config.yaml").write_text(config.to_yaml(), "utf-8")
    code = (
        "import sys; sys.modules['spacy'] = sys.modules['torchtext'] = None;"
        "from nmt.cli import main; sys.argv = ['nmt', 'train', '--config', 'config.yaml']; main()"
    )
    environment = {
        **os.environ,
        "PYTHONWARNINGS": "error::UserWarning,error::RuntimeWarning,error::FutureWarning",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stderr
    assert "best.safetensors" in done.stdout
    assert read_events(Path("runs/small/metrics.jsonl"))[-1]["step"] == 2


def test_a_folder_of_something_else_is_not_trained_into(tiny_prepared: PreparedData) -> None:
    Path("thesis").mkdir()
    Path("thesis/chapter.txt").write_text("dear")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(RunError, match="no run"):
            train(small_config(tiny_prepared.folder), run_dir=Path("thesis"), **options)
    assert [path.name for path in Path("thesis").iterdir()] == ["chapter.txt"]
    Path("thesis/chapter.txt").rename("file")
    with pytest.raises(RunError, match="no folder"):
        train(small_config(tiny_prepared.folder), run_dir=Path("file"))


def test_a_run_that_ends_within_its_warm_up_is_warned_of(
    tiny_prepared: PreparedData, caplog: pytest.LogCaptureFixture
) -> None:
    train(small_config(tiny_prepared.folder, warmup_steps=400))
    assert "within the warm-up of 400" in caplog.text
    assert "raise train.epochs" in caplog.text


def test_the_way_out_of_a_warm_up_is_one_that_helps(
    tiny_prepared: PreparedData, caplog: pytest.LogCaptureFixture
) -> None:
    train(small_config(tiny_prepared.folder, warmup_steps=400, max_steps=2))
    assert "raise train.max_steps, or lower train.warmup_steps" in caplog.text
    assert "train.epochs" not in caplog.text


# ---------------------------------------------------------------- minimum risk


def batch_of(prepared: PreparedData, rows: list[int]) -> Batch:
    return make_batch(prepared.split(prepared.train), np.array(rows))


def test_what_is_drawn_costs_as_sacrebleu_says_and_depends_on_seed_and_source_alone(
    tiny_prepared: PreparedData,
) -> None:
    config = small_config(tiny_prepared.folder, risk_samples=3, risk_epochs=1)
    model = load_model(train(small_config(tiny_prepared.folder, epochs=1)).model)

    def draw(rows: list[int], seed: int = 5) -> Drawn:
        batch = batch_of(tiny_prepared, rows)
        return draw_translations(model.network, batch, model.tgt_vocabulary, config, seed=seed)

    drawn = draw([0, 1, 2])
    assert drawn.costs.shape == (3, 3)
    _, targets = without_specials(batch_of(tiny_prepared, [0, 1, 2]))
    references = [detokenize(model.tgt_vocabulary.decode(target)) for target in targets]
    for row, ids in enumerate(drawn.tgt_out):
        text = detokenize(model.tgt_vocabulary.decode(ids[ids != PAD][:-1].tolist()))
        bleu = sacrebleu.sentence_bleu(text, [references[row // 3]], use_effective_order=True).score
        assert drawn.costs.flatten()[row].item() == pytest.approx(1 - bleu / 100, abs=1e-5)
    torch.testing.assert_close(draw([7, 2]).costs[1], drawn.costs[2])
    assert not torch.equal(draw([0, 1, 2], seed=6).tgt_out, drawn.tgt_out)


@pytest.mark.slow
def test_epochs_that_lower_the_risk_make_what_the_model_draws_cheaper(tiny_prepared: PreparedData) -> None:
    settings = {"batch_tokens": 1000, "learning_rate": 3e-3, "risk_learning_rate": 1e-3}
    config = small_config(tiny_prepared.folder, epochs=12, **settings)

    def mean_cost(path: Path) -> float:
        model = load_model(path)
        batch = batch_of(tiny_prepared, list(range(60)))
        return float(
            draw_translations(model.network, batch, model.tgt_vocabulary, config, seed=1).costs.mean()
        )

    before = mean_cost(train(config).run_dir / "last.safetensors")
    more = small_config(tiny_prepared.folder, epochs=14, risk_epochs=2, **settings)
    assert mean_cost(train(more, resume=True).run_dir / "last.safetensors") < before - 0.02


def test_within_an_epoch_the_risk_cannot_begin(tiny_prepared: PreparedData) -> None:
    settings = {"epochs": 3, "batch_tokens": 300}
    first_epoch = len(plan_batches(tiny_prepared.split("train"), 300, seed=1, epoch=0))
    stop_in_step(first_epoch + 2, small_config(tiny_prepared.folder, **settings))
    with pytest.raises(ConfigError, match=r"within an epoch.*train\.risk_samples \(0 there, 6 now\)"):
        train(small_config(tiny_prepared.folder, **settings, risk_epochs=2), resume=True)
    assert (
        train(small_config(tiny_prepared.folder, **settings, risk_epochs=1), resume=True).stopped_by is None
    )

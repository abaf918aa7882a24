"""What is exported says what the model says: CTranslate2 itself is asked, for every variant of the model."""

from __future__ import annotations

import errno
import importlib.util
import json
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import nmt.export
from nmt.cli import main
from nmt.config import Config, DataConfig, DecodeConfig, ModelConfig, VocabularyConfig
from nmt.data.corpus import Pair
from nmt.data.text import Tokenizer, detokenize, normalise
from nmt.data.vocabulary import BOS, EOS, SPECIALS, UNK, WordVocabulary
from nmt.decoding.search import translate_ids
from nmt.errors import ExportError, MachineError, NmtError
from nmt.export import QUANTIZATIONS, export, longest_sequence
from nmt.model.transformer import Transformer
from nmt.modelfile import Model, load_model, save_model
from nmt.translate import Translator
from tests.model.test_variants import VARIANTS, WORDS, build

needs_ctranslate2 = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None, reason="CTranslate2 is not installed"
)

FORBIDDEN: dict[str, Any] = {"disable_unk": True, "suppress_sequences": [["<pad>"], ["<bos>"]]}
GERMAN = Tokenizer("de")
LIMIT = 9
"""Most tokens of the small networks' translations."""


def words(count: int) -> WordVocabulary:
    return WordVocabulary([*SPECIALS, *(f"▁w{i}" for i in range(len(SPECIALS), count))])


def model_of(network: Transformer, src_words: int = WORDS, tgt_words: int = WORDS, **decode: Any) -> Model:
    """A network with word vocabularies, as a model; its sentences are short."""
    config = Config(
        data=DataConfig(max_tokens=10),
        vocabulary=VocabularyConfig(kind="word", joint=src_words == tgt_words),
        model=network.config,
        decode=DecodeConfig(
            **{"max_source_tokens": 10, "max_length_ratio": 1e-9, "max_length_extra": LIMIT, **decode}
        ),
    )
    return Model(None, config, network.eval(), words(src_words), words(tgt_words), {"step": 7})


def saved(model: Model, folder: Path) -> Path:
    path = folder / "model.safetensors"
    save_model(path, model)
    return path


def opened(folder: Path) -> Any:
    """A folder's model in CTranslate2, on one thread."""
    import ctranslate2

    return ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=1)


def random_sentences(*lengths: int, seed: int = 1) -> list[list[int]]:
    """Ids of ordinary words."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(EOS + 1, WORDS, (n,), generator=generator).tolist() for n in lengths]


@torch.no_grad()
def log_probs(model: Model, source: list[int], target: list[int]) -> torch.Tensor:
    """Our log-probability of each target token and of the `<eos>` behind them."""
    src = torch.tensor([[*source, EOS]])
    said = model.network(src, torch.ones_like(src, dtype=torch.bool), torch.tensor([[BOS, *target]]))
    return said.log_softmax(-1)[0, range(len(target) + 1), [*target, EOS]]


def pieces(vocabulary: Any, ids: Any) -> list[str]:
    return [vocabulary.pieces[i] for i in ids]


def said(model: Model, translator: Any, sentences: list[list[int]], **options: Any) -> list[tuple[int, ...]]:
    """CTranslate2's translations as ids, greedy unless told otherwise, with our tokens forbidden."""
    defaults = {"beam_size": 1, "length_penalty": 0, "min_decoding_length": 0}
    results = translator.translate_batch(
        [pieces(model.src_vocabulary, ids) for ids in sentences], **{**defaults, **FORBIDDEN, **options}
    )
    ids_of = {piece: i for i, piece in enumerate(model.tgt_vocabulary.pieces)}
    return [tuple(ids_of[piece] for piece in result.hypotheses[0]) for result in results]


# --- CTranslate2: the same numbers ------------------------------------------------------------------------


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Any]:
    """A small random network of each variant, and the same in CTranslate2."""
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("variant")
    model = model_of(build(request.param))
    export(saved(model, folder), format="ctranslate2", out=folder / "out")
    return model, opened(folder / "out")


def test_ctranslate2_gives_every_token_our_probability(variant: tuple[Model, Any]) -> None:
    model, translator = variant
    sources, targets = random_sentences(7, 1, 4), random_sentences(5, 9, 3, seed=2)
    found = translator.score_batch(
        [pieces(model.src_vocabulary, ids) for ids in sources],
        [pieces(model.tgt_vocabulary, ids) for ids in targets],
    )
    for source, target, result in zip(sources, targets, found, strict=True):
        expected = log_probs(model, source, target)
        assert expected.std() > 0.05
        assert torch.allclose(torch.tensor(result.log_probs), expected, atol=1e-5)


def test_ctranslate2_takes_our_steps_in_greedy_search(variant: tuple[Model, Any]) -> None:
    model, translator = variant
    sentences = random_sentences(1, 2, 2, 5, 6, 8, 10)
    for least in (0, 4):
        decode = model.config.decode.model_copy(update={"beam": 1, "min_length": least})
        ours = translate_ids(model.network, sentences, decode, device="cpu")
        found = said(model, translator, sentences, min_decoding_length=least, max_decoding_length=LIMIT)
        assert found == [hypothesis.ids for hypothesis in ours]
        assert min(map(len, found)) >= least


@needs_ctranslate2
def test_every_key_of_the_model_has_been_thought_of_in_the_export() -> None:
    """A new key fails here: export it, or refuse the model by the key's name and value, then list it."""
    trained_only = {
        "dropout",
        "embedding_dropout",
        "attention_dropout",
        "activation_dropout",
        "initialisation",
    }
    shared = {"share_embeddings"}  # an alias of a matrix is found by its values
    written = {
        "encoder_layers", "decoder_layers", "d_model", "heads", "head_width", "value_width",
        "projection_bias", "feed_forward", "activation", "norm", "final_norm", "embedding_norm", "norm_eps",
        "positions", "max_positions", "scale", "output_bias",
    }  # fmt: skip
    assert set(ModelConfig.model_fields) == trained_only | shared | written


@needs_ctranslate2
def test_two_vocabularies_stay_two(tmp_path: Path) -> None:
    config = ModelConfig(
        encoder_layers=1, decoder_layers=1, d_model=24, heads=4, feed_forward=40, share_embeddings="none"
    )
    torch.manual_seed(0)
    model = model_of(Transformer(config, WORDS, WORDS + 6), WORDS, WORDS + 6)
    export(saved(model, tmp_path), format="ctranslate2", out=tmp_path / "out")
    source, target = random_sentences(6)[0], [WORDS + 5, 4, WORDS]
    (found,) = opened(tmp_path / "out").score_batch(
        [pieces(model.src_vocabulary, source)], [pieces(model.tgt_vocabulary, target)]
    )
    assert torch.allclose(torch.tensor(found.log_probs), log_probs(model, source, target), atol=1e-5)
    for side, vocabulary in (("source", model.src_vocabulary), ("target", model.tgt_vocabulary)):
        assert json.loads((tmp_path / "out" / f"{side}_vocabulary.json").read_text("utf-8")) == list(
            vocabulary.pieces
        )


@needs_ctranslate2
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_translation_may_be_as_long_as_the_settings_say(tmp_path: Path, positions: str) -> None:
    config = ModelConfig(
        encoder_layers=1,
        decoder_layers=1,
        d_model=8,
        heads=2,
        feed_forward=8,
        positions=positions,  # type: ignore[arg-type]
    )
    model = model_of(Transformer(config, WORDS, WORDS), max_source_tokens=100, max_length_ratio=12.0)
    export(saved(model, tmp_path), format="ctranslate2", out=tmp_path / "out")
    limit = 12 * 100 + LIMIT
    (found,) = opened(tmp_path / "out").translate_batch(
        [["▁w5"] * 100], beam_size=1, min_decoding_length=limit, max_decoding_length=limit
    )
    assert len(found.hypotheses[0]) == limit
    assert longest_sequence(model.config) > limit


@needs_ctranslate2
def test_what_is_exported_are_copies(tiny_model: Model) -> None:
    before = [weight.clone() for weight in tiny_model.network.parameters()]
    spec = nmt.export.ctranslate2_spec(tiny_model)
    spec.validate()
    spec.optimize(quantization="int8")  # which rounds its weights where they lie
    assert all(map(torch.equal, before, tiny_model.network.parameters()))


# --- CTranslate2: a trained model -------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A trained model, its file, and its export."""

    model: Model
    path: Path
    folder: Path
    sentences: list[list[int]]


@pytest.fixture(scope="module")
def trained(
    tiny_model: Model, caption_pairs: dict[str, list[Pair]], tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    """`tiny_model` with a bias, by which what is forbidden to say has no probability, trained or not.

    CTranslate2 shares that probability out among the other tokens, and we do not, so that a beam could be
    pruned otherwise.
    """
    pytest.importorskip("ctranslate2")
    shape = tiny_model.config.model.model_copy(update={"output_bias": True})
    network = Transformer(shape, len(tiny_model.src_vocabulary), len(tiny_model.tgt_vocabulary))
    network.load_state_dict(tiny_model.network.state_dict(), strict=False)
    with torch.no_grad():
        network.projection.bias[:EOS] = -30.0
    model = replace(tiny_model, config=tiny_model.config.replace(model=shape), network=network.eval())
    folder = tmp_path_factory.mktemp("trained")
    path = saved(model, folder)
    export(path, format="ctranslate2", out=folder / "ct2")
    lines = [pair.source for pair in caption_pairs["test"][:60]]
    return Trained(model, path, folder / "ct2", Translator(model).encode(lines))


@pytest.mark.parametrize("beam", [1, 5])
def test_without_a_length_penalty_translations_are_ours_but_for_ties(trained: Trained, beam: int) -> None:
    model, translator = trained.model, opened(trained.folder)
    decode = model.config.decode.model_copy(update={"beam": beam, "length_penalty": 0.0})
    ours = translate_ids(model.network, trained.sentences, decode, device="cpu")
    for source, hypothesis in zip(trained.sentences, ours, strict=True):
        limit = int(decode.max_length_ratio * len(source)) + decode.max_length_extra
        (found,) = said(model, translator, [source], beam_size=beam, max_decoding_length=limit)
        if found != hypothesis.ids:
            theirs = log_probs(model, source, list(found)).sum().item()
            assert math.isclose(theirs, hypothesis.log_prob, abs_tol=1e-3)


def test_its_attention_is_the_mean_of_the_last_layer_s_heads(trained: Trained) -> None:
    model, source = trained.model, trained.sentences[0]
    (result,) = opened(trained.folder).translate_batch(
        [pieces(model.src_vocabulary, source)], beam_size=1, return_attention=True, **FORBIDDEN
    )
    target = [model.tgt_vocabulary.pieces.index(piece) for piece in result.hypotheses[0]]
    src = torch.tensor([[*source, EOS]])
    with torch.no_grad():
        ours = model.network.attention(
            src, torch.ones_like(src, dtype=torch.bool), torch.tensor([[BOS, *target]])
        )
    expected = ours.decoder_cross[-1][0].mean(0)[: len(target), : len(source)]
    assert torch.allclose(torch.tensor(result.attention[0])[: len(target)], expected, atol=1e-5)


@pytest.mark.parametrize("quantization", QUANTIZATIONS["ctranslate2"])
def test_every_quantization_is_loaded_and_about_as_good(
    trained: Trained, tmp_path: Path, quantization: str
) -> None:
    model = trained.model
    exported = export(trained.path, format="ctranslate2", out=tmp_path / "out", quantization=quantization)
    assert exported.quantization == quantization
    assert exported.size_bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    sizes = [(folder / "model.bin").stat().st_size for folder in (tmp_path / "out", trained.folder)]
    assert sizes[0] < (1.01 if quantization == "float32" else 0.8) * sizes[1]
    source, target = trained.sentences[0], trained.sentences[1]
    (found,) = opened(tmp_path / "out").score_batch(
        [pieces(model.src_vocabulary, source)], [pieces(model.tgt_vocabulary, target)]
    )
    expected = log_probs(model, source, target)
    assert (torch.tensor(found.log_probs) - expected).abs().mean() < 0.1 * expected.abs().mean()


# --- CTranslate2: the folder ------------------------------------------------------------------------------


def code_blocks(folder: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (folder / "README.md").read_text("utf-8"), re.M | re.S)


@needs_ctranslate2
@pytest.mark.parametrize(("kind", "beam"), [("subword", 1), ("subword", 4), ("word", 1)])
def test_the_example_in_the_folder_prints_our_translation(
    tiny_model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    beam: int,
) -> None:
    decode = tiny_model.config.decode.model_copy(update={"beam": beam, "max_source_tokens": 6})
    model = Model(None, tiny_model.config.replace(decode=decode), *_parts(tiny_model), {})
    if kind == "word":
        vocabulary = WordVocabulary([*SPECIALS, "▁Zwei", "▁Kinder", "▁im", "▁Park", ".", "▁spielen"])
        config = model.config.replace(vocabulary=VocabularyConfig(kind="word"))
        torch.manual_seed(1)
        network = Transformer(config.model, len(vocabulary), len(vocabulary))
        model = Model(None, config, network.eval(), vocabulary, vocabulary, {})
    export(saved(model, tmp_path), format="ctranslate2", out=tmp_path / "out")
    example, without_nmt = code_blocks(tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    for code in (example, _replacing_the_tokeniser(example, without_nmt)):
        exec(compile(code, "README.md", "exec"), {})
        (translation,) = Translator(model).translate(["Zwei Kinder spielen im Park."])
        assert capsys.readouterr().out == f"{translation.text}\n"
        assert translation.text


def _parts(model: Model) -> tuple[Any, Any, Any]:
    return model.network, model.src_vocabulary, model.tgt_vocabulary


def _replacing_the_tokeniser(example: str, without_nmt: str) -> str:
    """The example with both uses of nmt replaced by what the README gives for them."""
    lines = [without_nmt if line.startswith("marked =") else line for line in example.splitlines()]
    lines = [line for line in lines if not line.startswith("from nmt")]
    text = '" ".join("".join(result.hypotheses[0]).replace("▁", " ").split())'
    assert lines[-1] == "print(detokenize(result.hypotheses[0]))"
    return "\n".join([*lines[:-1], f"print({text})"])


@given(text=st.text(max_size=30) | st.text("aZwei ▁\\▅<eos>unk\u200b", max_size=30))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_folder_s_sentencepiece_model_cuts_any_text_as_we_do(trained: Trained, text: str) -> None:
    import sentencepiece

    model = trained.model
    subwords = sentencepiece.SentencePieceProcessor(model_file=str(trained.folder / "shared.spm"))
    ids_of = {piece: i for i, piece in enumerate(model.src_vocabulary.pieces)}
    marked = GERMAN(normalise(text))
    cut = [piece for token in marked for piece in subwords.encode(token, out_type=str)]
    assert [ids_of.get(piece, UNK) for piece in cut] == model.src_vocabulary.encode(marked)
    assert detokenize(cut) == normalise(text)


@needs_ctranslate2
def test_the_folder_tells_where_it_comes_from(trained: Trained) -> None:
    facts = json.loads((trained.folder / "nmt.json").read_text("utf-8"))
    assert facts["config"] == trained.model.config.model_dump(mode="json")
    assert facts["provenance"] == trained.model.provenance
    assert facts["quantization"] == "float32"


@needs_ctranslate2
def test_an_export_is_replaced_only_when_told_so_and_only_if_nothing_else_is_there(
    trained: Trained, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()  # an empty folder may be used
    export(trained.path, format="ctranslate2", out=out)
    with pytest.raises(ExportError, match="holds an export already") as caught:
        export(trained.path, format="ctranslate2", out=out, quantization="int8")
    assert "--overwrite" in str(caught.value.hint)
    export(trained.path, format="ctranslate2", out=out, quantization="int8", overwrite=True)
    assert json.loads((out / "nmt.json").read_text("utf-8"))["quantization"] == "int8"
    (out / "mine.txt").touch()
    with pytest.raises(ExportError, match=r"holds mine\.txt"):
        export(trained.path, format="ctranslate2", out=out, overwrite=True)
    assert (out / "mine.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"], "no lock and no draft is left"


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_no_export_is_left_alone(tiny_model_path: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    mine = out / "config.json" if kind == "folder" else out
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine", "utf-8")
    with pytest.raises(ExportError, match="is no export"):
        export(tiny_model_path, format="ctranslate2", out=out, overwrite=True)
    assert mine.read_text("utf-8") == "mine"


@needs_ctranslate2
@pytest.mark.parametrize("before", [False, True])
def test_a_failure_on_the_way_leaves_what_was_there(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    out = tmp_path / "out"
    if before:
        export(trained.path, format="ctranslate2", out=out, quantization="int8")
    standing = {path.name: path.read_bytes() for path in out.glob("*")}

    def full(*_: object) -> Iterator[tuple[str, bytes]]:
        yield "shared.spm", b"half"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(nmt.export, "_files_beside", full)
    with pytest.raises(MachineError, match="No space left"):
        export(trained.path, format="ctranslate2", out=out, overwrite=True)
    assert {path.name: path.read_bytes() for path in out.glob("*")} == standing
    assert out.exists() == before
    assert not list(tmp_path.glob(".out.draft"))


def test_without_ctranslate2_there_is_one_line_that_says_how_to_get_it(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ExportError, match=r"^CTranslate2 cannot be imported") as caught:
        export(tiny_model_path, format="ctranslate2", out=tmp_path / "out")
    assert caught.value.hint == 'python -m pip install "ctranslate2>=4.8,<5"'
    pyproject = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text("utf-8")
    assert 'export = ["ctranslate2>=4.8,<5"]' in pyproject
    assert not (tmp_path / "out").exists()


# --- safetensors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantization", QUANTIZATIONS["safetensors"])
def test_a_model_file_of_another_precision_is_read_as_float32(
    tiny_model: Model, tiny_model_path: Path, tmp_path: Path, quantization: str
) -> None:
    path, dtype = tmp_path / "new" / "half.safetensors", getattr(torch, quantization)
    exported = export(tiny_model_path, format="safetensors", out=path, quantization=quantization)
    stored = {name: tensor for name, tensor in load_file(path).items() if not name.endswith(".model")}
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    saved_bytes = sum(tensor.numel() for tensor in stored.values()) * (4 - dtype.itemsize)
    assert abs(exported.model_bytes - exported.size_bytes - saved_bytes) < 500

    loaded = load_model(path)
    for found, exact in zip(loaded.network.parameters(), tiny_model.network.parameters(), strict=True):
        assert torch.equal(found, exact.to(dtype).float())
    assert loaded.config == tiny_model.config
    assert loaded.src_vocabulary.to_state() == tiny_model.src_vocabulary.to_state()
    assert loaded.provenance == {**tiny_model.provenance, "precision": quantization}


def test_a_half_file_becomes_a_float32_file_of_the_same_weights(
    tiny_model_path: Path, tmp_path: Path
) -> None:
    half, again = tmp_path / "half.safetensors", tmp_path / "again.safetensors"
    export(tiny_model_path, format="safetensors", out=half, quantization="bfloat16")
    export(half, format="safetensors", out=again, quantization="float32")
    assert again.stat().st_size > 1.5 * half.stat().st_size
    for ours, theirs in zip(*(load_model(path).network.parameters() for path in (half, again)), strict=True):
        assert torch.equal(ours, theirs)


def test_no_model_file_is_lost(tiny_model_path: Path, tmp_path: Path) -> None:
    model = tmp_path / "best.safetensors"
    model.write_bytes(tiny_model_path.read_bytes())
    (tmp_path / "notes").write_text("mine", "utf-8")
    for out, overwrite, message in (
        (model, True, "is the model itself"),
        (tmp_path, True, "is a folder"),
        (tmp_path / "notes", False, "is there already"),
        (tmp_path / "notes", True, "is no model file"),
    ):
        with pytest.raises(ExportError, match=message):
            export(tmp_path, format="safetensors", out=out, quantization="float16", overwrite=overwrite)
    assert model.read_bytes() == tiny_model_path.read_bytes()
    assert (tmp_path / "notes").read_text("utf-8") == "mine"
    for _ in range(2):
        export(model, format="safetensors", out=tmp_path / "half", quantization="float16", overwrite=True)


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "quantization", "message"),
    [
        ("safetensors", None, "none is named"),
        ("safetensors", "int8", "safetensors knows no quantization 'int8'"),
        ("ctranslate2", "int4", "ctranslate2 knows no quantization 'int4'"),
    ],
)
def test_a_quantization_that_does_not_fit_is_refused(
    tiny_model_path: Path, tmp_path: Path, format: Any, quantization: str | None, message: str
) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        export(tiny_model_path, format=format, out=tmp_path / "out", quantization=quantization)
    assert "float32, float16" in str(caught.value.hint)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("quantization", ["float16", "int8_float16"])
@needs_ctranslate2
def test_weights_beyond_float16_are_refused_by_name(tmp_path: Path, quantization: str) -> None:
    model = model_of(build("pre"))
    with torch.no_grad():
        model.network.encoder[1].feed_forward.expand.bias[3] = -1e5  # type: ignore[union-attr,index]
    path = saved(model, tmp_path)
    for format in ("ctranslate2", "safetensors"):
        if quantization in QUANTIZATIONS[format]:  # type: ignore[index]
            with pytest.raises(ExportError, match=r"encoder.1.feed_forward.expand.bias holds 1e\+05"):
                export(path, format=format, out=tmp_path / "out", quantization=quantization)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
    export(path, format="safetensors", out=tmp_path / "out", quantization="bfloat16")


# --- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def nmt_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Any]]:
    """`nmt` inside this process: exit code, standard output, standard error."""
    log = logging.getLogger("nmt")
    before = log.level, list(log.handlers)

    def run(*arguments: str | Path) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["nmt", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        return leaving.value.code or 0, *capsys.readouterr()

    yield run
    log.setLevel(before[0])
    log.handlers[:] = before[1]


def test_the_command_says_what_it_wrote(
    trained: Trained, tmp_path: Path, nmt_here: Callable[..., Any]
) -> None:
    out = tmp_path / "out"
    code, printed, log = nmt_here("export", trained.path, "--format", "ctranslate2", "--out", out)
    assert code == 0
    assert printed.startswith(f"{out}: ctranslate2, float32, ")
    assert log == f"how to run it: {out / 'README.md'}\n"
    code, printed, log = nmt_here("export", trained.path, "--format", "ctranslate2", "--out", out)
    assert (code, printed) == (2, "")
    assert log.startswith(f"error: {out} holds an export already\nhint: ")
    half = tmp_path / "half"
    code, printed, log = nmt_here(
        "export",
        trained.path,
        "--format",
        "safetensors",
        "--quantization",
        "float16",
        "-o",
        half,
        "-q",
    )
    assert (code, log) == (0, "")
    assert nmt_here("translate", "--model", half, "Ein Hund.")[0] == 0


def test_a_missing_model_is_the_first_thing_said(tmp_path: Path) -> None:
    with pytest.raises(NmtError, match="no such model file or run folder"):
        export(tmp_path / "none", format="ctranslate2", out=tmp_path / "out")

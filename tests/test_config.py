"""The schema of all settings: what it takes, what it says to the rest, and the configs that come with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nmt.config import (
    Config,
    DataConfig,
    all_keys,
    config_from_mapping,
    find_config,
    load_config,
    shipped_configs,
)
from nmt.errors import ConfigError

SHIPPED = sorted(path.relative_to(shipped_configs()).as_posix() for path in shipped_configs().rglob("*.yaml"))


def load(folder: Path, text: str, **options: object) -> Config:
    """A config from text, as a file of a user's."""
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, **options)  # type: ignore[arg-type]


def refusal(folder: Path, text: str, **options: object) -> ConfigError:
    """The error that a text gets."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text, **options)
    return caught.value


# --- misspelt keys and wrong values (case 20) -------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "key", "suggestion"),
    [
        ("learing_rate: 0.001", 1, "learing_rate", "train.learning_rate"),
        ("seed: 1\ntrain:\n  learing_rate: 0.001", 3, "train.learing_rate", "train.learning_rate"),
        ("train:\n  lr: 1e-4", 2, "train.lr", "train.learning_rate"),
        ("train:\n  batch_size: 64", 2, "train.batch_size", "train.batch_tokens"),
        ("trian:\n  epochs: 3", 1, "trian", "train"),
        ("model:\n  epochs: 3", 2, "model.epochs", "train.epochs"),
        ("Seed: 3", 1, "Seed", "seed"),
    ],
)
def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_key(
    tmp_path: Path, text: str, line: int, key: str, suggestion: str
) -> None:
    error = refusal(tmp_path, text)
    assert error.message == f"{tmp_path / 'mine.yaml'}, line {line}: unknown key {key}"
    assert error.hint == f"did you mean {suggestion}?"


def test_a_key_like_no_other_gets_the_list_of_those_there_are(tmp_path: Path) -> None:
    hint = refusal(tmp_path, "vocabulary:\n  zzz: 1").hint
    assert hint is not None
    assert "size" in hint
    assert "min_freq" in hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "train:\n  batch_tokens: -3",
            "line 2: train.batch_tokens: should be greater than or equal to 1, not -3",
        ),
        ("train:\n  epochs: yes", 'line 2: train.epochs: should be a whole number, not "yes"'),
        ("train:\n  epochs: 1.5", "line 2: train.epochs: should be a whole number, not 1.5"),
        ("train:\n  epochs: true", "line 2: train.epochs: should be a whole number, not true"),
        ("train:\n  epochs: '3'", 'line 2: train.epochs: should be a whole number, not "3"'),
        ("train:\n  epochs:", "line 2: train.epochs: should be a whole number, not null"),
        ("train:\n  learning_rate: 1e999", "should be a finite number"),
        ("train:\n  betas: 0.9", "train.betas: should be a list, such as [a, b], not 0.9"),
        ("train:\n  betas: [0.9]", "train.betas.1: has too few entries"),
        ("train: 5", "line 1: train: should hold keys and values of its own, not 5"),
        ("data:\n  tests: val", 'data.tests: should be a list, such as [a, b], not "val"'),
        ("data:\n  train: null", "data.train: should be text"),
        ("name: 2024", "name: should be text (in quotes a number is text), not 2024"),
        ("name: a/b", "name: should be of letters, digits, dots, dashes and underscores"),
        ("name: ..", "name: should be of letters"),
        ("model:\n  norm: both", "model.norm: should be 'pre' or 'post', not \"both\""),
        ("precision: fp16", "precision: should be 'auto', 'float32' or 'bf16'"),
        ("device: gpu", "device: 'gpu' is none of auto, cpu, cuda, cuda:N, mps"),
        ("model:\n  d_model: 129\n  heads: 4", "model: d_model 129 is not a multiple of heads 4"),
        (
            "model:\n  d_model: 130\n  heads: 26\n  positions: rotary",
            "positions is 'rotary', which turns pairs of columns, but a head is 5 wide",
        ),
        ("model:\n  scale: prj\n  share_embeddings: none", "scale is 'prj' but share_embeddings is 'none'"),
        (
            "model:\n  positions: learned\n  max_positions: 256",
            "decode.max_source_tokens is 256, with <eos> one more, but model.max_positions is 256",
        ),
        ("train:\n  epochs: 3\n  risk_epochs: 4", "risk_epochs is 4, but they are the last of 3 epochs"),
        ("train:\n  patience: 3\n  risk_epochs: 1", "patience is 3 and risk_epochs 1"),
        ("vocabulary:\n  joint: false", "share_embeddings is 'all' but vocabulary.joint is false"),
        ("data:\n  src_lang: en", "src_lang and tgt_lang are both 'en'"),
        ("data:\n  val: train", "must be different splits"),
    ],
)
def test_a_wrong_value_is_refused_in_plain_words(tmp_path: Path, text: str, words: str) -> None:
    error = refusal(tmp_path, text)
    assert words in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "- a",
        "just words",
        "1: 2",
        "? [a]\n: b",
        "train: {epochs: 1, epochs: 2}",
        "seed: 1\nseed: 2",
        "seed: " + "9" * 6000,
        "a: " + "[" * 5000,
        "seed: \0",
        "seed: &x [*x]",
        "!!python/object/apply:os.getcwd []",
        "extends: nowhere.yaml",
        "extends: [base.yaml]",
    ],
)
def test_what_is_no_config_is_one_line_naming_the_file(tmp_path: Path, text: str) -> None:
    error = refusal(tmp_path, text)
    assert "\n" not in error.message
    assert len(error.message) < 500
    assert "mine.yaml" in error.message or "nowhere.yaml" in error.message


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes("# Größe\nseed: 1".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"mine\.yaml: not UTF-8 text"):
        load_config(path)


# --- numbers, nothing, and what YAML 1.1 would have made of them ------------------------------------------


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-4", 1e-4), ("1E-4", 1e-4), ("1.e-4", 1e-4), ("+.5", 0.5), ("1", 1.0), ("2e0", 2.0)],
)
def test_a_number_in_any_spelling_is_a_number(tmp_path: Path, written: str, value: float) -> None:
    assert load(tmp_path, f"train:\n  learning_rate: {written}").train.learning_rate == value
    assert load(tmp_path, "", overrides=[f"train.learning_rate={written}"]).train.learning_rate == value


def test_the_norwegian_no_is_a_language(tmp_path: Path) -> None:
    assert load(tmp_path, "data:\n  src_lang: no").data.src_lang == "no"


@pytest.mark.parametrize("text", ["", "# nothing\n", "train:\n", "data:\ntrain:\n  # epochs: 3\nmodel: ~\n"])
def test_an_empty_section_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == Config(name="mine")


def test_an_empty_section_keeps_what_it_extends(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text("train:\n  epochs: 7\n")
    assert load(tmp_path, "extends: parent.yaml\ntrain:\n").train.epochs == 7


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeffseed: 3").seed == 3


# --- layers -----------------------------------------------------------------------------------------------


def test_the_nearer_layer_wins_section_by_section(tmp_path: Path) -> None:
    (tmp_path / "grandparent.yaml").write_text("seed: 5\ntrain:\n  epochs: 7\n  batch_tokens: 100\n")
    (tmp_path / "parent.yaml").write_text("extends: grandparent.yaml\ntrain:\n  epochs: 8\n")
    config = load(
        tmp_path, "extends: parent.yaml\nmodel:\n  heads: 2\n", overrides=["train.batch_tokens=200"]
    )
    assert (config.seed, config.train.epochs, config.train.batch_tokens, config.model.heads) == (5, 8, 200, 2)


def test_a_child_has_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text("name: parent\n")
    assert load(tmp_path, "extends: parent.yaml").name == "mine"
    assert load(tmp_path, "extends: parent.yaml\nname: other").name == "other"


def test_extending_itself_is_refused_with_the_whole_circle(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("extends: mine.yaml")
    error = refusal(tmp_path, "extends: other.yaml")
    assert "extends itself" in error.message
    assert error.message.count("mine.yaml") >= 2


def test_the_fault_of_a_parent_is_blamed_on_the_parent(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text("seed: 1\ntrain:\n  epochz: 7\n")
    assert (
        "parent.yaml, line 3: unknown key train.epochz" in refusal(tmp_path, "extends: parent.yaml").message
    )


@pytest.mark.parametrize(
    "text", ["train.epochs", "=3", "train..epochs=3", ".=3", "train.epochs=[", "train.epochs=x"]
)
def test_a_faulty_set_is_refused_and_named(tmp_path: Path, text: str) -> None:
    assert refusal(tmp_path, "", overrides=[text]).message.startswith(f"--set {text}: ")


def test_a_set_takes_yaml(tmp_path: Path) -> None:
    overrides = ["data.tests=[a, b]", "train={epochs: 3, patience: 2}", "train.patience=null", "name=x"]
    config = load(tmp_path, "", overrides=overrides)
    assert config.data.tests == ("a", "b")
    assert (config.train.epochs, config.train.patience, config.name) == (3, None, "x")


def test_the_options_of_their_own_win_and_are_named_when_they_are_wrong(tmp_path: Path) -> None:
    config = load(tmp_path, "", overrides=["device=mps"], source="captions", device="cpu", precision="bf16")
    assert (config.data.source, config.device, config.precision) == ("captions", "cpu", "bf16")
    assert refusal(tmp_path, "", device="gpu").message.startswith("--device: ")
    assert refusal(tmp_path, "", source="").message.startswith("--data: ")


@given(st.dictionaries(st.sampled_from(all_keys()), st.none() | st.booleans() | st.integers() | st.text()))
def test_whatever_a_key_is_set_to_is_either_taken_or_refused_in_one_line(values: dict[str, object]) -> None:
    nested: dict[str, dict[str, object]] = {}
    flat = {key: value for key, value in values.items() if "." not in key}
    for key, value in values.items():
        if "." in key:
            section, _, inner = key.partition(".")
            nested.setdefault(section, {})[inner] = value
    said: list[str] = []
    try:
        config = config_from_mapping({**flat, **nested}, "a model")
    except ConfigError as error:
        said.append(error.message)
    else:
        assert config_from_mapping(yaml.safe_load(config.to_yaml()), "again") == config
    assert not any("\n" in message or "pydantic" in message for message in said)


# --- what a config is -------------------------------------------------------------------------------------


def test_a_config_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().train.epochs = 3  # type: ignore[misc]


def test_its_own_yaml_reads_back_equal(tmp_path: Path) -> None:
    config = load_config("word.yaml", overrides=["data.tests=[a]", "train.eps=1e-12", "data.source=Größe"])
    assert load(tmp_path, config.to_yaml()) == config


def test_the_data_hash_follows_the_data_settings_alone() -> None:
    config = Config()
    assert re.fullmatch(r"[0-9a-f]{8}", config.data_hash())
    same = [["train.epochs=3"], ["seed=9"], ["data.mirror=elsewhere"], ["model.heads=4"]]
    other = [["vocabulary.size=500"], ["data.source=captions"], ["data.src_lowercase=true"]]
    assert {load_config(overrides=keys).data_hash() for keys in same} == {config.data_hash()}
    assert len({load_config(overrides=keys).data_hash() for keys in other} - {config.data_hash()}) == len(
        other
    )


# --- the configs that come with it ------------------------------------------------------------------------


def test_the_configs_that_the_readme_speaks_of_are_there() -> None:
    assert {"base.yaml", "captions.yaml", "smoke.yaml", "word.yaml"} <= set(SHIPPED)
    seeds = ("postnorm-shared", "bert-encoder", "prenorm-annotated", "tutorial")
    assert {f"seeds/{name}{size}.yaml" for name in seeds for size in ("", "-smoke")} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_config_loads_by_name_from_any_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(name) == load_config(name.removesuffix(".yaml"))
    assert load_config(name).name == Path(name).stem


def test_a_file_of_that_name_here_goes_before_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smoke.yaml").write_text("seed: 77")
    (tmp_path / "word").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_config("smoke.yaml").seed == 77
    assert load_config("word").vocabulary.kind == "word"


def test_no_name_leads_out_of_the_shipped_folder() -> None:
    with pytest.raises(ConfigError, match="no shipped config of that name"):
        find_config("../pyproject.toml")


def test_an_unknown_name_gets_the_nearest_and_the_list() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("smok.yaml")
    hint = caught.value.hint or ""
    assert hint.startswith("did you mean smoke.yaml? shipped configs: ")
    assert all(name in hint for name in SHIPPED)


def test_an_ending_alone_makes_no_name_a_near_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("nosuch.yaml")
    assert (caught.value.hint or "").startswith("shipped configs: ")


def test_base_names_every_key_and_says_what_the_schema_says() -> None:
    written = yaml.safe_load((shipped_configs() / "base.yaml").read_text("utf-8"))
    names = [
        f"{name}.{key}" if isinstance(value, dict) else name
        for name, value in written.items()
        for key in (value if isinstance(value, dict) else [""])
    ]
    assert names == all_keys()
    assert load_config("base.yaml") == Config(), "base.yaml and the schema's defaults must not drift apart"


@pytest.mark.parametrize("name", SHIPPED)
def test_every_key_of_a_shipped_config_has_a_comment_on_its_line(name: str) -> None:
    lines = (shipped_configs() / name).read_text("utf-8").split("\n")
    keys = [line for line in lines if re.match(r"\s*\w+:", line)]
    bare = [line for line in keys if "  # " not in line and not re.fullmatch(r"\w+:", line)]
    assert keys
    assert not bare


def test_every_key_of_the_schema_says_what_it_is() -> None:
    for model in (Config, *(type(getattr(Config(), name)) for name in Config.model_fields)):
        for name, field in getattr(model, "model_fields", {}).items():
            is_section = hasattr(field.annotation, "model_fields")
            assert field.description or is_section, f"{model.__name__}.{name} has no docstring"


def test_a_config_written_out_reads_back_whatever_its_strings_look_like(tmp_path: Path) -> None:
    config = Config(name="3e-4", data=DataConfig(source="08", src_lang="no", train="null", val="1.5"))
    (tmp_path / "config.yaml").write_text(config.to_yaml(), "utf-8")
    assert load_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    "text",
    ["train: &a {epochs: *a}", "seed: !!bool maybe", "seed: !!timestamp never", "x: !!python/name:os.system"],
)
def test_odd_yaml_is_an_error_and_no_crash(text: str, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"odd\.yaml"):
        load_config(tmp_path / "odd.yaml")


def test_a_seed_that_no_generator_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seed"):
        load_config("base.yaml", overrides=[f"seed={2**63}"])


def test_a_folder_has_one_spelling() -> None:
    plain = load_config("base.yaml", source="text/mine")
    assert load_config("base.yaml", source="text//mine/").data_hash() == plain.data_hash()


def test_extends_means_the_same_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "base.yaml").write_text("seed: 77\n", "utf-8")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\n", "utf-8")
    monkeypatch.chdir(tmp_path / "here")
    assert load_config(tmp_path / "mine.yaml").seed == load_config(shipped_configs() / "base.yaml").seed
    (tmp_path / "here" / "base.yaml").write_text("extends: base.yaml\nseed: 78\n", "utf-8")
    assert load_config("base.yaml").seed == 78  # one's own base.yaml over the shipped one


def test_a_config_that_extends_itself_is_told_so(tmp_path: Path) -> None:
    assert "extends itself" in refusal(tmp_path, "extends: mine.yaml").message

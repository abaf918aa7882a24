"""Other wordings of the training pairs: which side stays, in which order, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.config import Config, load_config
from nmt.data.corpus import Pair, read_lines
from nmt.translate import Translator


@pytest.fixture
def diversify(script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """scripts/diversify.py."""
    monkeypatch.chdir(tmp_path)
    return script("diversify")


@pytest.fixture
def config(tiny_config: Config) -> str:
    """A config file for the captions of `tiny_config`."""
    Path("mine.yaml").write_text(tiny_config.to_yaml(), "utf-8")
    return "mine.yaml"


@pytest.fixture
def reverse_config(tiny_config: Config) -> str:
    """The same the other way round."""
    data = tiny_config.data.model_copy(
        update={"src_lang": tiny_config.data.tgt_lang, "tgt_lang": tiny_config.data.src_lang}
    )
    Path("back.yaml").write_text(tiny_config.replace(data=data).to_yaml(), "utf-8")
    return "back.yaml"


def own_text(config: str) -> list[list[str]]:
    data = load_config(config).data
    return [read_lines(Path(data.source, f"train.{lang}")) for lang in (data.src_lang, data.tgt_lang)]


def test_a_forward_models_translations_take_the_place_of_the_targets(
    diversify: Any, config: str, tiny_model_path: Path
) -> None:
    command = ["--config", config, "--forward", str(tiny_model_path), "--out", "more/pairs"]
    diversify.main(command)
    sources, _ = own_text(config)
    translations = Translator.load(tiny_model_path, device="cpu").translate(sources, beam=1)
    assert read_lines(Path("more/pairs.de")) == sources
    assert read_lines(Path("more/pairs.en")) == [each.text for each in translations]


def test_a_reverse_models_translations_take_the_place_of_the_sources_after_a_forward_ones(
    diversify: Any, reverse_config: str, tiny_model_path: Path
) -> None:
    # for a config from English to German a German to English model is a reverse one
    command = ["--config", reverse_config, "--reverse", *[str(tiny_model_path)] * 2, "--out", "pairs"]
    diversify.main(command)
    _, targets = own_text(reverse_config)
    translations = [
        each.text for each in Translator.load(tiny_model_path, device="cpu").translate(targets, beam=1)
    ]
    assert read_lines(Path("pairs.en")) == translations * 2
    assert read_lines(Path("pairs.de")) == targets * 2


def test_what_is_made_is_what_data_extra_takes(
    diversify: Any, config: str, tiny_model_path: Path, tiny_config: Config
) -> None:
    from nmt.prepare import prepare

    diversify.main(["--config", config, "--forward", str(tiny_model_path), "--out", "more/pairs"])
    data = tiny_config.data.model_copy(update={"extra": "more/pairs"})
    counts = prepare(tiny_config.replace(data=data)).data.manifest.counts
    assert counts["train+extra"].pairs_read == counts["train"].pairs_read


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no model is named"),
        (["--reverse", "MODEL"], "MODEL translates de into en, not en into de"),
        (["--forward", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_one_message_and_nothing_is_written(
    arguments: list[str],
    words: str,
    diversify: Any,
    config: str,
    tiny_model_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = str(tiny_model_path)
    command = [place if word == "MODEL" else word for word in arguments]
    with pytest.raises(SystemExit, match=r"^2$"):
        diversify.main(["--config", config, *command, "--out", "more/pairs"])
    assert words.replace("MODEL", place) in capsys.readouterr().err
    assert not Path("more").exists()


def test_a_line_break_within_a_line_stays_within_it(diversify: Any, tiny_config: Config) -> None:
    pairs = [Pair("a\u2028b", "c\x85d"), Pair("", "e")]
    diversify.write_pairs(Path("pairs"), pairs, tiny_config)
    assert read_lines(Path("pairs.de")) == ["a\u2028b", ""]
    assert read_lines(Path("pairs.en")) == ["c\x85d", "e"]

"""Make more training pairs from the ones there are: other wordings of them, by models trained on them.

    python scripts/diversify.py --forward runs/teacher --reverse runs/en-de --out wordings/train
    nmt train --config best.yaml --run-dir runs/base --resume

A forward model translates the training sources, and its translations take the place of the targets; a reverse
model translates the targets back, and its translations take the place of the sources (data diversification,
Nguyen et al., 2020). What is made are two files, as data.extra takes them.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nmt.cli import exits
from nmt.config import Config, load_config
from nmt.data.corpus import Pair
from nmt.errors import ConfigError
from nmt.files import write_whole
from nmt.modelfile import read_header, resolve_model
from nmt.runtime import spare_the_machine

log = logging.getLogger("nmt")


def wordings(
    config: Config, forward: Sequence[Path], reverse: Sequence[Path], *, device: str = "auto"
) -> Iterator[Pair]:
    """Each training pair of a config as each model words it, model by model.

    Raises ConfigError for a model of other languages, before the first one translates.
    """
    from nmt.prepare import training_text

    languages = config.data.src_lang, config.data.tgt_lang
    for path in (*forward, *reverse):
        _check_languages(path, languages if path in forward else languages[::-1])
    pairs = training_text(config)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    for path in forward:
        yield from map(Pair, sources, _translations(path, sources, device))
    for path in reverse:
        yield from map(Pair, _translations(path, targets, device), targets)


def _check_languages(path: Path, wanted: tuple[str, ...]) -> None:
    data = read_header(resolve_model(path))["config"]["data"]
    if (data["src_lang"], data["tgt_lang"]) != wanted:
        raise ConfigError(
            f"{path} translates {data['src_lang']} into {data['tgt_lang']}, not {' into '.join(wanted)}",
            hint="--forward takes models of the config's direction, --reverse those of the other one, "
            "and --config names the config of your text",
        )


def _translations(path: Path, lines: Sequence[str], device: str) -> Iterator[str]:
    from nmt.translate import Translator

    for number, translation in enumerate(Translator.load(path, device=device).stream(lines, beam=1), 1):
        if number % 5000 == 0 or number == len(lines):
            log.info("%s of %s lines", f"{number:,}", f"{len(lines):,}")
        yield translation.text


def write_pairs(place: Path, pairs: Sequence[Pair], config: Config) -> None:
    """Write pairs as the two files of data.extra."""
    sides = (
        (config.data.src_lang, [pair.source for pair in pairs]),
        (config.data.tgt_lang, [pair.target for pair in pairs]),
    )
    for language, lines in sides:
        file = place.with_name(f"{place.name}.{language}")
        write_whole(file, "".join(f"{line}\n" for line in lines).encode())


def with_mirror(config: Config, mirror: str | None) -> Config:
    """The config with another place to take Multi30k's files from, if one is named."""
    return config.replace(data=config.data.model_copy(update={"mirror": mirror})) if mirror else config


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make other wordings of the training pairs.")
    parser.add_argument(
        "--config", default="base.yaml", metavar="NAME", help="whose training text: base.yaml"
    )
    parser.add_argument(
        "--mirror", metavar="PLACE", help="where Multi30k's files are: an address or a folder"
    )
    for name, direction in (("forward", "the config's"), ("reverse", "the other")):
        parser.add_argument(
            f"--{name}",
            type=Path,
            nargs="+",
            default=[],
            metavar="MODEL",
            help=f"model files or runs of {direction} direction",
        )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER/NAME", help="what data.extra takes"
    )
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    """Translate and write."""
    arguments = parsed(words)
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)
    spare_the_machine()  # as the nmt command does, before torch is imported
    with exits():
        if not arguments.forward and not arguments.reverse:
            raise ConfigError("no model is named", hint="--forward MODEL, --reverse MODEL or both")
        config = with_mirror(load_config(arguments.config), arguments.mirror)
        made = list(wordings(config, arguments.forward, arguments.reverse, device=arguments.device))
        write_pairs(arguments.out, made, config)
        print(f"{arguments.out}: {len(made):,} pairs")


if __name__ == "__main__":
    main(sys.argv[1:])

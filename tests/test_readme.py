"""The README is true: its commands run, its files exist, its table of settings is the schema's.

Lines of a block that begin with `$ ` are commands, the others are their output; a block without `$ ` is all
commands. They run one after another in one folder, where captions stand in for Multi30k; models are tiny and
take ten steps at most.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from nmt.config import Config, find_config, shipped_configs
from nmt.data.corpus import Pair

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")

TINY = """
model: {encoder_layers: 1, decoder_layers: 1, d_model: 32, heads: 4, feed_forward: 64}
train: {epochs: 1, max_steps: 10}
"""
SETUP = ("py", ".venv\\Scripts\\python", ".venv/bin/python", "python3", "make")
"""Commands that set up an environment: what they name is checked, and they are not run."""


AT_ONCE, LATER = README.split("## The commands, on Multi30k")
"""What works right after installation, and what needs a trained model."""


def blocks(language: str, text: str = README) -> list[str]:
    """The code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def commands(text: str = README) -> Iterator[str]:
    """Every command, in order."""
    for block in blocks("console", text) + blocks("bash", text):
        lines = block.splitlines()
        marked = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        yield from marked or lines


def split_names() -> list[str]:
    """The test splits that commands name."""
    return sorted(set(re.findall(r"--split (\w+)", "\n".join(commands()))) - {"test"})


def settings_table() -> str:
    """The table of settings, as the schema has it."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and hasattr(section, "model_fields"):
            lines += [row(f"{name}.{key}", inner) for key, inner in section.model_fields.items()]
        else:
            lines.append(row(name, field))
    return "\n".join(lines)


def row(key: str, field: FieldInfo) -> str:
    shown = field.default if isinstance(field.default, str) else json.dumps(field.default)
    return f"| `{key}` | `{shown}` | {field.description} |"


def test_the_table_of_settings_is_that_of_the_schema() -> None:
    table = settings_table()
    assert table in README, f"put this table into README.md:\n\n{table}\n"


def test_every_shipped_config_is_named_and_every_named_one_is_there() -> None:
    for path in shipped_configs().glob("*.yaml"):
        assert f"`{path.name}`" in README
    for name in re.findall(r"--config (\w+\.yaml)", README):
        assert name == "mine.yaml" or find_config(name)


def test_every_link_into_the_repository_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_nothing_tells_anyone_to_install_another_project() -> None:
    text = re.sub(r"\s+", " ", README)
    assert "pip install nmt" not in text
    assert "@@" not in README, "a gap is left"


def test_what_the_set_up_lines_name_exists() -> None:
    setup = [command for command in commands() if command.split()[0] in SETUP]
    assert any("-c constraints.txt" in command for command in setup)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for command in setup:
        for name in re.findall(r"-c (\S+)", command):
            assert (ROOT / name).exists()
        for name in re.findall(r"\[(\w+)\]", command):
            assert name in extras


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("make")])
def test_make_knows_its_targets(command: str) -> None:
    answer = subprocess.run([*shlex.split(command), "-n"], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert answer.returncode == 0, answer.stderr


# --- the commands of nmt ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, caption_pairs: dict[str, list[Pair]]) -> Path:
    """A folder in which the README's files lie, and small configs go before the shipped ones."""
    folder = tmp_path_factory.mktemp("readme")
    sizes = {"train": 300, "val": 10, "test": 10}
    write_text(folder / "mytext", {name: caption_pairs[name][:size] for name, size in sizes.items()}, "fr")
    tests = dict.fromkeys(split_names(), caption_pairs["test"][:10])
    stand_in = {"train": caption_pairs["train"][:300], "val": caption_pairs["val"][:10], **tests}
    write_text(folder / "standin", stand_in, "de", compress=True)
    text = "data: {source: standin}\nvocabulary: {size: 400}"
    (folder / "base.yaml").write_text(f"extends: {shipped_configs() / 'base.yaml'}\n{text}\n{TINY}", "utf-8")
    for name in ("best.yaml", "en-de.yaml"):  # what they extend is the base.yaml here
        shutil.copy(shipped_configs() / name, folder)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    for block in blocks("yaml"):
        name = re.match(r"# (\S+\.yaml)\n", block)
        if name:
            (folder / name[1]).write_text(block + "vocabulary: {size: 400}\n", "utf-8")
    return folder


def write_text(folder: Path, splits: dict[str, list[Pair]], src_lang: str, *, compress: bool = False) -> None:
    folder.mkdir()
    for name, pairs in splits.items():
        for language, lines in ((src_lang, [p.source for p in pairs]), ("en", [p.target for p in pairs])):
            data = "".join(f"{line}\n" for line in lines).encode()
            if compress:
                (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(data))
            else:
                (folder / f"{name}.{language}").write_bytes(data)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which `nmt` is the checkout's, and `python` that of these tests."""
    for name, program in (("nmt", f'"{sys.executable}" -m nmt'), ("python", f'"{sys.executable}"')):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        script.chmod(0o755)
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    cache = str(tmp_path / "cache")
    own = {"PYTHONPATH": str(ROOT), "PATH": path, "NMT_CACHE": cache, "OMP_NUM_THREADS": "1"}
    return {name: value for name, value in os.environ.items() if name != "NMT_MODEL"} | own


@pytest.mark.skipif(os.name != "posix", reason="runs the commands in a POSIX shell")
def test_translating_works_at_once_and_says_what_is_written_there(
    environment: dict[str, str], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (block,) = (block for block in blocks("console", AT_ONCE) if "nmt translate" in block)
    for command, wanted in re.findall(r"^\$ (nmt .*)\n(.*)$", block, re.M):
        answer = subprocess.run(
            command,
            shell=True,
            cwd=empty,
            env={**environment, "NMT_OFFLINE": "1"},
            capture_output=True,
            encoding="utf-8",
        )
        assert answer.stdout == f"{wanted}\n", answer.stderr
    assert list(empty.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="runs the commands in a POSIX shell")
def test_every_command_of_nmt_runs(folder: Path, environment: dict[str, str]) -> None:
    ran = 0
    for command in commands(LATER):
        if command.split()[0] in SETUP or command.startswith(".venv"):
            continue
        answer = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=300,
        )
        assert answer.returncode == 0, f"{command}\n{answer.stderr}"
        assert answer.stdout, f"{command} printed nothing"
        ran += 1
    assert ran >= 8
    for program in blocks("python"):
        answer = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env=environment,
            capture_output=True,
            encoding="utf-8",
        )
        assert answer.returncode == 0, f"{program}\n{answer.stderr}"
        assert answer.stdout.count("\n") == 2

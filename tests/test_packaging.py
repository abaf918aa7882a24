"""What is installed, and that it works from any folder, installed either way."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
LEFT_BEHIND = shutil.ignore_patterns(".*", "__pycache__", "runs", "build", "dist")
SHIPPED = ROOT / "nmt" / "pretrained" / "multi30k-de-en.safetensors"
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
IMPORT_NAMES = {"pyyaml": "yaml"}
"""Distributions whose module has another name."""


def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        values: dict[str, Any] = tomllib.load(file)["project"]
    return values


# --- installed, either way --------------------------------------------------------------------------------


class Installed:
    """An environment of its own that holds nmt and borrows all else from the one that runs the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkout = folder / "checkout"
        shutil.copytree(ROOT, self.checkout, ignore=LEFT_BEHIND)
        shutil.copy(ROOT / ".gitignore", self.checkout)
        venv.create(folder / "env", with_pip=False)
        self.scripts = folder / "env" / SCRIPTS
        paths = sysconfig.get_paths(vars={"base": str(folder / "env"), "platbase": str(folder / "env")})
        self.site = Path(paths["purelib"])
        lent = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
        (self.site / "lent.pth").write_text("\n".join(lent) + "\n", encoding="utf-8")
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()

    def pip_install(self, *what: str) -> None:
        """Install without network: nothing but the project itself, built by the hatchling that is there."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.scripts / "python"), "install"]
        flags = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
        answer = subprocess.run([*pip, *flags, *what], cwd=self.folder, capture_output=True, encoding="utf-8")
        assert answer.returncode == 0, answer.stdout + answer.stderr

    def run(self, command: str, *arguments: str) -> str:
        """What a command of this environment prints when it runs in another folder."""
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NMT_"))
        }
        answer = subprocess.run(
            [str(self.scripts / command), *arguments],
            cwd=self.elsewhere,
            env={**environ, "PYTHONUTF8": "1"},
            capture_output=True,
            encoding="utf-8",
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    def config_path(self) -> Path:
        code = "from nmt.config import find_config; print(find_config('base.yaml').resolve())"
        return Path(self.run("python", "-c", code).strip())

    def pretrained_folder(self) -> Path:
        code = "from nmt.modelfile import shipped_model; print(shipped_model().resolve().parent)"
        return Path(self.run("python", "-c", code).strip())

    def config_name(self) -> str:
        return self.run(
            "python", "-c", "from nmt.config import load_config; print(load_config().name)"
        ).strip()


@pytest.mark.slow
def test_an_installed_wheel_brings_command_and_configs_to_any_folder(tmp_path: Path) -> None:
    installed = Installed(tmp_path.resolve())
    installed.pip_install(str(installed.checkout))
    shutil.rmtree(installed.checkout)
    assert installed.config_path() == (installed.site / "nmt" / "configs" / "base.yaml").resolve()
    assert installed.config_name() == "base"
    shipped = {path.name for path in installed.config_path().parent.glob("*.yaml")}
    assert shipped == {path.name for path in (ROOT / "configs").glob("*.yaml")}
    assert "translate" in installed.run("nmt", "--help")
    assert "translate" in installed.run("python", "-m", "nmt", "--help")
    folder = installed.pretrained_folder()
    assert folder == (installed.site / "nmt" / "pretrained").resolve()
    assert {path.name for path in folder.iterdir()} == {SHIPPED.name, "MODEL_CARD.md", "NOTICE"}
    assert (folder / SHIPPED.name).read_bytes() == SHIPPED.read_bytes()
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.iterdir())
    assert "people" in installed.run("nmt", "translate", "Eine Gruppe von Menschen steht vor einem Iglu.")
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.iterdir()) == before
    metadata = next(installed.site.glob("nmt_cli-*.dist-info"))
    assert (metadata / "licenses" / "nmt" / "pretrained" / "NOTICE").is_file()
    assert "License-Expression: MIT AND LicenseRef-Multi30k" in (metadata / "METADATA").read_text("utf-8")


@pytest.mark.slow
def test_an_editable_install_reads_the_configs_of_the_checkout(tmp_path: Path) -> None:
    installed = Installed(tmp_path.resolve())
    installed.pip_install("--editable", str(installed.checkout))
    assert installed.config_path() == installed.checkout / "configs" / "base.yaml"
    assert not list(installed.site.rglob("base.yaml")), "a copy would go stale"
    config = installed.checkout / "configs" / "base.yaml"
    text = re.sub(r"^name:.*\n", "", config.read_text("utf-8"), flags=re.M)
    config.write_text(f"name: edited\n{text}", encoding="utf-8")
    assert installed.config_name() == "edited"
    assert installed.pretrained_folder() == installed.checkout / "nmt" / "pretrained"
    assert (installed.pretrained_folder() / SHIPPED.name).is_file()
    assert "translate" in installed.run("nmt", "--help")
    assert "translate" in installed.run("python", "-m", "nmt", "--help")


# --- what is declared -------------------------------------------------------------------------------------


def imported_modules() -> set[str]:
    """The top-level modules that nmt imports anywhere and that are neither Python's nor its own."""
    found: set[str] = set()
    for path in (ROOT / "nmt").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"nmt"}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    optional = project()["optional-dependencies"]
    extras = [text for name, texts in optional.items() if name != "dev" for text in texts]
    declared = [Requirement(text).name for text in [*project()["dependencies"], *extras]]
    assert imported_modules() == {IMPORT_NAMES.get(name, name) for name in declared}


def test_whoever_develops_has_every_extra() -> None:
    optional = project()["optional-dependencies"]
    assert {text for texts in optional.values() for text in texts} == set(optional["dev"])


def test_the_licences_are_those_of_code_and_weights_and_each_comes_along() -> None:
    assert project()["license"] == "MIT AND LicenseRef-Multi30k"
    assert set(project()["license-files"]) == {"LICENSE", "nmt/pretrained/NOTICE"}
    assert "LicenseRef-Multi30k" in (SHIPPED.parent / "NOTICE").read_text("utf-8")


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_does_not_hide_the_weights() -> None:
    answer = subprocess.run(["git", "check-ignore", "--quiet", str(SHIPPED)], cwd=ROOT)
    assert answer.returncode in (1, 128), "1: not ignored; 128: this is no checkout"


def test_the_version_is_the_one_in_the_package() -> None:
    import nmt

    assert "version" in project()["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", nmt.__version__)


def test_the_constraints_pin_every_dependency_to_a_version_that_is_allowed() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in pins), "exact, and no local version"
    versions = {pin.name.lower().replace("_", "-"): str(pin.specifier)[2:] for pin in pins}
    for text in [*project()["dependencies"], *project()["optional-dependencies"]["dev"]]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(versions[wanted.name]), (
            f"{text} is pinned to {versions[wanted.name]}"
        )


def test_the_workflow_tries_every_python_that_is_supported() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    pythons = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    marks = (line.rpartition(" ")[2] for line in project()["classifiers"] if "Python :: 3." in line)
    assert pythons == list(marks)
    supported = SpecifierSet(project()["requires-python"])
    assert [f"3.{minor}" for minor in range(30) if supported.contains(f"3.{minor}.1")] == pythons
    assert workflow["permissions"] == {"contents": "read"}
    assert any(".ci/run" in step.get("run", "") for step in workflow["jobs"]["test"]["steps"])

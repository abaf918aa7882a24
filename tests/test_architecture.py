"""The rooms of docs/architecture.md, held against the imports that are really there.

Every import counts, also one inside a function or for types only. When a rule changes on purpose, change
docs/architecture.md: the failing test prints what its block has to hold.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nmt"
DOCUMENT = ROOT / "docs" / "architecture.md"

FLOORS = (
    ("__main__",),
    ("cli",),
    ("__init__",),
    ("train",),
    ("compare",),
    ("evaluate",),
    ("reporting",),
    ("translate",),
    ("export",),
    ("inspect",),
    ("prepare",),
    ("training", "decoding"),
    ("modelfile",),
    ("scoring", "model", "data"),
    ("config",),
    ("runtime", "files", "progress"),
    ("errors",),
)
"""The rooms from the roof to the ground: an import goes down, never up."""

STAGES = ("prepare", "train", "evaluate", "compare", "translate", "inspect", "export")
FOLDERS = ("data", "model", "training", "decoding", "scoring")

OWNERS = {
    "typer": ("cli.py",),
    "yaml": ("config.py",),
    "pydantic": ("config.py",),
    "spacy": ("data/text.py",),
    "torchtext": ("data/vocabulary.py",),
    "sentencepiece": ("data/vocabulary.py",),
    "requests": ("data/multi30k.py",),
    "sacrebleu": ("scoring/metrics.py",),
    "matplotlib": ("scoring/plots.py", "scoring/heatmaps.py"),
    "safetensors": ("modelfile.py", "training/checkpoint.py"),
    "torch.cuda": ("runtime.py",),
    "torch.distributed": ("runtime.py",),
    "portalocker": ("files.py",),
    "tensorboard": ("training/tracking.py",),
    "ctranslate2": ("export.py",),
    "os.environ": ("runtime.py",),
    "os.getenv": ("runtime.py",),
}
"""Who may use a library; each path is under nmt/."""

UNPICKLERS = (
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "torch.load",
    "torch.save",
)


def modules() -> dict[str, ast.Module]:
    """Every module under nmt/, by its path there."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


def room_of(path: str) -> str:
    """The room of a module: its folder, or its own name at the top."""
    return path.split("/")[0].removesuffix(".py")


def imported_names(tree: ast.AST, path: str) -> Iterator[str]:
    """Every dotted name that a module imports, relative imports made absolute."""
    package = ["nmt", *path.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def used_names(tree: ast.AST, path: str) -> Iterator[str]:
    """Every dotted name that a module imports, or reads as an attribute of an imported one."""
    yield from imported_names(tree, path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def is_or_is_in(name: str, library: str) -> bool:
    return name == library or name.startswith(f"{library}.")


def arrows() -> dict[str, set[str]]:
    """Which room imports which others; the package's `__init__` is no target, for everything imports it."""
    rooms = {room_of(path) for path in modules()}
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for path, tree in modules().items():
        for name in imported_names(tree, path):
            target = name.split(".")[1] if name.startswith("nmt.") else ""
            if target in rooms - {room_of(path)}:
                found[room_of(path)].add(target)
    return found


def block(found: dict[str, set[str]]) -> str:
    """The arrows as docs/architecture.md holds them: one line for each room, from the roof to the ground."""
    order = [room for floor in FLOORS for room in floor]
    order += sorted(found.keys() - set(order))
    lines = [
        f"{room} -> {', '.join(sorted(found[room], key=order.index))}" for room in order if room in found
    ]
    return "\n".join(line.rstrip() for line in lines)


def test_the_document_holds_exactly_the_imports_that_are_there() -> None:
    written = re.search(r"^```imports\n(.*?)\n```$", DOCUMENT.read_text("utf-8"), re.M | re.S)
    assert written, "docs/architecture.md has no block ```imports"
    real = block(arrows())
    assert written[1] == real, f"the block in docs/architecture.md should be:\n\n{real}\n"


def test_nothing_imports_upward() -> None:
    floor_of = {room: level for level, floor in enumerate(FLOORS) for room in floor}
    found = arrows()
    assert found.keys() <= floor_of.keys(), "a room without a floor: add it to FLOORS"
    upward = [
        (room, target)
        for room, targets in found.items()
        for target in targets
        if floor_of[target] <= floor_of[room]
    ]
    assert not upward


def test_the_folders_know_of_each_other_only_what_the_design_allows() -> None:
    found = arrows()
    known = {folder: found[folder] & set(FOLDERS) for folder in FOLDERS}
    assert known["model"] == known["data"] == known["scoring"] == set()
    assert known["training"] <= {"model", "data"}
    assert known["decoding"] <= {"model", "data"}
    assert found["model"] <= {"config", "errors"}, "the model knows tensors and its settings, and no more"
    assert not {room for room in found if found[room] & set(STAGES)} & set(FOLDERS)


def test_each_library_has_its_owner() -> None:
    users: dict[str, set[str]] = {library: set() for library in OWNERS}
    for path, tree in modules().items():
        for name in used_names(tree, path):
            for library in OWNERS:
                if is_or_is_in(name, library):
                    users[library].add(path)
    strangers = {library: users[library] - set(owners) for library, owners in OWNERS.items()}
    assert not {library: paths for library, paths in strangers.items() if paths}
    unused = [library for library in OWNERS if "." not in library and not users[library]]
    assert not unused


def test_nothing_reads_or_writes_a_pickle() -> None:
    for path, tree in modules().items():
        bad = [name for name in used_names(tree, path) for word in UNPICKLERS if is_or_is_in(name, word)]
        assert not bad, f"nmt/{path} uses {bad}"
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) in ("np.load", "np.save", "numpy.load", "numpy.save"):
                words = {word.arg: ast.unparse(word.value) for word in call.keywords}
                assert words.get("allow_pickle") == "False", (
                    f"nmt/{path}, line {call.lineno}: allow_pickle=False"
                )


def test_only_the_command_line_exits_or_prints() -> None:
    for path, tree in modules().items():
        names = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        names |= {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        leaving = names & {"exit", "quit", "sys.exit", "os._exit", "SystemExit", "print", "sys.stdout"}
        assert not leaving or path == "cli.py", f"nmt/{path} uses {leaving}"


@pytest.mark.parametrize("arguments", [[], *([stage] for stage in STAGES)])
def test_help_loads_neither_torch_nor_spacy(arguments: list[str]) -> None:
    code = f"""
import sys
from nmt.cli import main
sys.argv = ["nmt", *{arguments!r}, "--help"]
try:
    main()
except SystemExit as leaving:
    assert not leaving.code, leaving.code
heavy = {{"torch", "spacy", "torchtext", "sacrebleu", "matplotlib", "sentencepiece"}} & set(sys.modules)
assert not heavy, heavy
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert answer.returncode == 0, answer.stderr
    assert "--help" in answer.stdout


@pytest.mark.parametrize("name", ["benchmark", "build_pretrained", "diversify"])
def test_a_script_makes_the_machine_ready_before_it_loads_torch(name: str) -> None:
    code = f"import sys; sys.path.insert(0, 'scripts'); import {name}; assert 'torch' not in sys.modules"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert answer.returncode == 0, answer.stderr

"""Make `.venv` ready: create it, install nmt and its tools, and do nothing while that still holds.

    python scripts/setup_venv.py [--this-python]

It is installed anew when pyproject.toml or constraints.txt have changed or the checkout has moved, and remade
when it is broken or, with `--this-python`, of another version than the Python that runs this.

Only the standard library is used, and nothing that an old Python cannot read: such a one has to be told that
it is too old.
"""

import hashlib
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "nmt-setup.txt")
VENV_PYTHON = os.path.join(VENV, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))

OLDEST = (3, 11)
NEWEST = (3, 14)


def main():
    other_python = "--this-python" in sys.argv[1:] and venv_version() not in ("", this_version())
    if os.path.exists(VENV_PYTHON) and read_stamp() == wanted_stamp() and not other_python:
        return
    check_python()
    if other_python or not venv_version():
        create()
    install()
    say(".venv is ready, with Python " + venv_version())


def check_python():
    """Leave with one line, before anything is made, where this Python cannot do it."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        sys.exit(
            "nmt needs Python 3.11 to 3.14 and this is {0}.{1}: install one of them and name it, "
            "as in make PYTHON=python3.12".format(*sys.version_info)
        )
    try:
        import ensurepip  # noqa: F401 - Debian ships venv without it
        import venv  # noqa: F401
    except ImportError:
        sys.exit(
            "this Python has no venv module: install it (Debian and Ubuntu: apt install python{0}.{1}-venv) "
            "or name another Python, as in make PYTHON=python3.12".format(*sys.version_info)
        )


def create():
    say("creating .venv with Python " + this_version())
    shutil.rmtree(VENV, ignore_errors=True)
    run([sys.executable, "-m", "venv", VENV])


def install():
    """Install the checkout itself and its tools; pip shows how it gets on."""
    if os.path.exists(STAMP):
        os.remove(STAMP)
    say("installing nmt and what it needs into .venv: a minute or two")
    constraints = os.path.join(ROOT, "constraints.txt")
    run([VENV_PYTHON, "-m", "pip", "install", "-c", constraints, "-e", ROOT + "[dev]"])
    with open(STAMP, "w") as stamp:
        stamp.write(wanted_stamp())


def run(command):
    if subprocess.call(command, cwd=ROOT):
        sys.exit("failed: " + " ".join(command))


def venv_version():
    """The version of the Python in .venv; nothing where there is none with pip, as after a broken start."""
    code = "import pip, platform; print(platform.python_version())"
    try:
        return subprocess.check_output([VENV_PYTHON, "-c", code], stderr=subprocess.PIPE).decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def this_version():
    return "{0}.{1}.{2}".format(*sys.version_info)


def wanted_stamp():
    """What the stamp says while .venv is up to date: a hash of the checkout's place and of both files."""
    digest = hashlib.sha256(repr(ROOT).encode("utf-8", "backslashreplace"))
    for name in ("pyproject.toml", "constraints.txt"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest() + "\n"


def read_stamp():
    if not os.path.exists(STAMP):
        return ""
    with open(STAMP) as stamp:
        return stamp.read()


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""The command line as a shell meets it: streams, exit codes, locales, and what is said when things go wrong.

Commands run as processes of their own where the process matters, else inside this one through `main`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import nmt.cli
from nmt.cli import main
from nmt.config import Config, load_config
from nmt.data.dataset import PreparedData
from nmt.errors import NmtError

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "nmt"]
LINES = ["Ein Hund läuft.", "", " \t", "Ein Hund\u2028läuft\x85schnell\x0bweg.", "Eine Frau lacht."]


@pytest.fixture(autouse=True)
def clean_slate(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No model from outside, and the log as it was."""
    monkeypatch.delenv("NMT_MODEL", raising=False)
    log = logging.getLogger("nmt")
    before = log.level, list(log.handlers)
    yield
    log.setLevel(before[0])
    log.handlers[:] = before[1]


def environment(**more: str) -> dict[str, str]:
    """This environment with the checkout on the path, so that any folder may be the current one."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**buffered, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def nmt_process(
    *arguments: str | bytes | Path, given: bytes = b"", folder: Path = ROOT, **more: str
) -> subprocess.CompletedProcess[bytes]:
    """`nmt` as a process of its own."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=given,
        capture_output=True,
        cwd=folder,
        env=environment(**more),
        timeout=120,
    )


Answer = tuple[int, str, str]


@pytest.fixture
def nmt_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """`nmt` inside this process: exit code, standard output, standard error."""

    def run(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["nmt", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        code = leaving.value.code
        return (code if isinstance(code, int) else 0), *capsys.readouterr()

    return run


# --- first contact ----------------------------------------------------------------------------------------


def seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return time.perf_counter() - start


def test_help_answers_at_once() -> None:
    # 0.4 s on a quiet machine; on a loaded one, what twice typer itself takes to load, and a little
    measured = statistics.median(seconds([*COMMAND, "--help"]) for _ in range(5))
    typer_alone = statistics.median(seconds([sys.executable, "-c", "import typer"]) for _ in range(5))
    assert measured <= max(0.4, 4 * typer_alone)


@pytest.mark.parametrize("command", ["", "prepare", "train", "evaluate", "compare", "translate", "inspect"])
def test_every_help_is_plain_text_on_standard_output(command: str, nmt_here: Callable[..., Answer]) -> None:
    code, out, err = nmt_here(*([command] if command else []), "--help")
    assert code == 0
    assert out.startswith("Usage: nmt")
    assert "\x1b" not in out
    assert err == ""


def test_version_says_what_a_bug_report_needs(nmt_here: Callable[..., Answer]) -> None:
    code, out, _ = nmt_here("--version")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "nmt",
        "Python",
        "torch",
        "device",
        "spaCy",
        "torchtext",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["trian"],
        ["train", "--no-such-option"],
        ["train", "--resume", "--overwrite"],
        ["translate", "--input", "a.txt", "Ein Hund."],
        ["translate", "--precision", "int4", "Ein Hund."],
        ["translate", "-5 Grad"],
        ["translate", "--attention", "picture.pdf", "Ein Hund."],
        ["translate", "--beam", "5", "--nbest", "2", "Ein Hund."],
        ["translate", "--beam", "5", "--sample", "1", "Ein Hund."],
        ["translate", "--seed", "5", "Ein Hund."],
        ["translate", "--beam", "0", "Ein Hund."],
        ["inspect", "--positions", "picture"],
        ["inspect", "base.yaml", "word.yaml"],
    ],
)
def test_wrong_usage_is_exit_2(arguments: list[str], nmt_here: Callable[..., Answer]) -> None:
    code, out, err = nmt_here(*arguments)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("translate", "--beam", "3.5"), 'should be a whole number, not "3.5"'),
        (("translate", "--beam", "0"), 'should be greater than or equal to 1, not "0"'),
        (("evaluate", "--length-penalty", "x"), 'should be a number, not "x"'),
        (("translate", "--precision", "int4"), "'int4' is not one of 'auto', 'float32', 'bf16', 'int8'"),
        (("export", "--format", "onnx"), "'onnx' is not one of 'ctranslate2', 'safetensors'"),
    ],
)
def test_a_value_that_an_option_does_not_take_is_told_in_plain_words(
    arguments: tuple[str, ...], said: str, nmt_here: Callable[..., Answer]
) -> None:
    code, out, err = nmt_here(*arguments, "x")
    assert (code, out) == (2, "")
    assert f"Error: Invalid value for '{arguments[1]}': {said}" in err


@pytest.mark.parametrize(("sentence", "is_told"), [("-5 Grad", True), ("-Ja!", False), ("--beem", False)])
def test_a_sentence_that_is_taken_for_an_option_says_how_it_is_given(
    sentence: str, is_told: bool, nmt_here: Callable[..., Answer]
) -> None:
    code, _, err = nmt_here("translate", sentence)
    assert code == 2
    assert "No such option" in err
    assert ('nmt translate -- "…"' in " ".join(err.split())) is is_told


# --- faults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("learing_rate: 0.001", "hint: did you mean train.learning_rate?"),
        ("batch_tokens: -3", "train.batch_tokens: should be greater than or equal to 1, not -3"),
        ("epochs: yes", 'train.epochs: should be a whole number, not "yes"'),
    ],
)
def test_a_typo_in_a_config_is_two_lines_and_exit_2(
    key: str, said: str, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    path = tmp_path / "typo.yaml"
    path.write_text(f"train:\n  {key}\n")
    code, out, err = nmt_here("train", "--config", path)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}, line 2: ")
    assert said in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "key"), [("compile: true", "compile"), ("train: {compile: true}", "train.compile")]
)
def test_compiling_is_no_setting_and_is_refused_by_its_name(
    text: str, key: str, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    path = tmp_path / "compiled.yaml"
    path.write_text(f"{text}\n")
    for command in (("train", "--config", path), ("inspect", path)):
        code, out, err = nmt_here(*command)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {path}, line 1: unknown key {key}\nhint: known here: ")
        assert len(err.splitlines()) == 2


def test_a_missing_model_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nmt_here: Callable[..., Answer]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = nmt_here("translate", "--config", "captions.yaml", "Ein Hund läuft.")
    assert (code, out) == (2, "")
    assert "no model: runs/captions holds none" in err
    assert "hint: train first: nmt train --config captions.yaml" in err


@pytest.mark.parametrize(
    "difference", ["source: mytext", "{source: mytext, src_lang: fr}", "tgt_lang: fr", "source: captions"]
)
def test_a_config_of_another_text_does_not_get_the_model_that_comes_with_nmt(
    difference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nmt_here: Callable[..., Answer]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = difference if difference.startswith("{") else f"{{{difference}}}"
    Path("mine.yaml").write_text(f"extends: base.yaml\ndata: {text}\n")
    for command in (("translate", "Ein Hund läuft."), ("evaluate", "--split", "val")):
        code, out, err = nmt_here(*command, "--config", "mine.yaml")
        assert (code, out) == (2, "")
        assert "no model: runs/mine holds none" in err
        assert "hint: train first: nmt train --config mine.yaml" in err
    Path("mine.yaml").rename("base.yaml")  # which goes before the shipped one, also where none is named
    assert nmt_here("translate", "Ein Hund läuft.")[0] == 2


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (NmtError("it broke", hint="mend it"), 2, "error: it broke\nhint: mend it\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "a/b"),
            2,
            "error: a/b: No space left on device\nhint: ",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "a/b"),
            2,
            "error: a/b: Permission denied\nhint: ",
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "a/b"),
            2,
            "error: a/b: Read-only file system\nhint: ",
        ),
        (MemoryError(), 2, "error: out of memory\nhint: "),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            2,
            "error: out of memory\nhint: ",
        ),
        (
            type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"),
            2,
            "error: CUDA out of memory\nhint: ",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    ],
)
def test_what_the_user_can_mend_has_a_message_and_a_code_and_no_traceback(
    fault: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    nmt_here: Callable[..., Answer],
) -> None:
    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(nmt.cli, "_sentences", fail)
    got, out, err = nmt_here("translate", "Ein Hund.")
    assert (got, out) == (code, "")
    assert err.startswith(said)
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    "fault", [ValueError("a bug"), RuntimeError("a bug"), OSError("a bug"), KeyError("a bug")]
)
def test_a_bug_keeps_its_traceback(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(nmt.cli, "_sentences", fail)
    monkeypatch.setattr(sys, "argv", ["nmt", "translate", "Ein Hund."])
    with pytest.raises(type(fault), match="a bug"):
        main()


def test_the_traceback_of_a_bug_is_plain_and_the_exit_code_1() -> None:
    code = (
        "import nmt.cli, sys; nmt.cli._sentences = None; sys.argv = ['nmt', 'translate', 'x']; nmt.cli.main()"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert answer.stderr.startswith("Traceback (most recent call last):")
    assert answer.stderr.endswith("TypeError: 'NoneType' object is not callable\n")


@pytest.mark.skipif(os.name != "posix", reason="pipes end otherwise on Windows")
def test_help_into_a_closed_pipe_is_141_and_silence() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        answer = subprocess.run(
            [*COMMAND, "--help"], stdout=write_end, stderr=subprocess.PIPE, cwd=ROOT, env=environment()
        )
    finally:
        os.close(write_end)
    assert (answer.returncode, answer.stderr) == (141, b"")


@pytest.mark.skipif(os.name != "posix", reason="Windows closes it otherwise")
def test_closed_standard_output_and_error_are_no_bug() -> None:
    def close() -> None:
        os.close(1)
        os.close(2)

    assert subprocess.run([*COMMAND, "--help"], cwd=ROOT, preexec_fn=close).returncode == 0
    assert subprocess.run([*COMMAND, "trian"], cwd=ROOT, preexec_fn=close).returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_standard_output_is_one_message() -> None:
    with open("/dev/full", "wb") as full:
        answer = subprocess.run(
            [*COMMAND, "--version"], stdout=full, stderr=subprocess.PIPE, cwd=ROOT, env=environment()
        )
    assert answer.returncode == 2
    assert answer.stderr.startswith(b"error: No space left on device\nhint: ")
    assert b"Traceback" not in answer.stderr
    assert b"Exception ignored" not in answer.stderr


# --- translate --------------------------------------------------------------------------------------------


def test_nothing_in_is_nothing_out_and_loads_no_model() -> None:
    answer = nmt_process("translate", PYTHONPROFILEIMPORTTIME="1")
    assert (answer.returncode, answer.stdout) == (0, b"")
    assert b"typer" in answer.stderr
    assert b"torch" not in answer.stderr


@pytest.mark.skipif(os.name != "posix", reason="Windows closes it otherwise")
def test_closed_standard_input_is_nothing_in() -> None:
    answer = subprocess.run(
        [*COMMAND, "translate"], cwd=ROOT, capture_output=True, preexec_fn=lambda: os.close(0)
    )
    assert (answer.returncode, answer.stdout) == (0, b"")
    assert b"Traceback" not in answer.stderr


@pytest.mark.slow
def test_lines_in_are_lines_out_whatever_the_locale(tiny_model_path: Path) -> None:
    text = "".join(f"{line}\n" for line in LINES).encode()
    answers = [
        nmt_process("translate", "--model", tiny_model_path, given=text, **locale)
        for locale in (
            {"PYTHONUTF8": "1"},
            {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"},
        )
    ]
    assert [answer.returncode for answer in answers] == [0, 0]
    assert answers[0].stdout == answers[1].stdout
    out = answers[0].stdout.decode("utf-8").split("\n")
    assert out.pop() == ""
    assert [bool(line) for line in out] == [bool(line.strip()) for line in LINES]
    assert str(tiny_model_path).encode() in answers[0].stderr, "the model that was used is named"
    assert b"\r" not in answers[0].stderr


@pytest.mark.slow
def test_arguments_are_utf8_whatever_the_locale_and_may_begin_with_a_dash(
    tiny_model_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    texts = ["-5 Grad und Schnee.", "Ein Mädchen läuft."]
    answer = nmt_process(
        *("translate", "--model", tiny_model_path, "--json", "--quiet", "--"),
        *(text.encode() for text in texts),
        **{"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"},
    )
    assert answer.returncode == 0
    assert answer.stderr == b""
    found = [json.loads(line) for line in answer.stdout.decode("utf-8").splitlines()]
    assert [one["source"] for one in found] == texts
    assert all(one["score"] < 0 for one in found)
    assert (
        nmt_here("translate", "--model", tiny_model_path, "--json", "--", *texts)[1].encode() == answer.stdout
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs pipes that can be polled")
def test_each_line_is_answered_while_the_pipe_stays_open(tiny_model_path: Path) -> None:
    command = [*COMMAND, "translate", "--model", str(tiny_model_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(60, process.kill)  # a missing answer would keep us waiting forever
        watchdog.start()
        for line in ("Ein Hund läuft.\n", "\n", "Eine Frau lacht.\n"):
            process.stdin.write(line.encode())
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n")
        process.stdin.close()
        assert process.stdout.read() == b""
        watchdog.cancel()
        assert process.wait(timeout=30) == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_reader_that_goes_ends_it_in_silence(tiny_model_path: Path) -> None:
    script = f"""
yes 'Ein Hund.' | head -2000 | '{sys.executable}' -m nmt translate -q --model '{tiny_model_path}' | head -1
echo "${{PIPESTATUS[2]}}" >&2
"""
    answer = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, env=environment(), timeout=120
    )
    assert answer.stdout.count(b"\n") == 1
    assert answer.stderr == b"141\n"


def test_words_without_quotes_are_one_sentence_and_it_says_so(
    tiny_model_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    code, together, err = nmt_here("translate", "--model", tiny_model_path, "Ein", "Hund", "läuft.")
    assert code == 0
    assert "taking these 3 words for one sentence" in err
    code, quoted, err = nmt_here("translate", "--model", tiny_model_path, "Ein Hund läuft.")
    assert (code, quoted) == (0, together)
    assert "words for one sentence" not in err


def test_a_file_in_and_a_file_out(
    tiny_model_path: Path, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    source, target = tmp_path / "in.de", tmp_path / "out.en"
    source.write_bytes("".join(f"{line}\n" for line in LINES).encode())
    target.write_text("older")
    code, out, _ = nmt_here("translate", "--model", tiny_model_path, "-i", source, "-o", target)
    assert (code, out) == (0, "")
    assert target.read_bytes().count(b"\n") == len(LINES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.de", "out.en"]


def test_a_failure_leaves_the_older_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nmt_here: Callable[..., Answer]
) -> None:
    def one_and_then_none(*_: object) -> Iterator[object]:
        from nmt.translate import Translation

        yield Translation("a", "b", -1.0, ())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(nmt.cli, "_translated", one_and_then_none)
    target = tmp_path / "out.en"
    target.write_text("older")
    assert nmt_here("translate", "Ein Hund läuft.", "-o", target)[0] == 2
    assert target.read_text() == "older"
    assert [path.name for path in tmp_path.iterdir()] == ["out.en"]


def test_json_tells_how_a_translation_was_found_and_the_n_best(
    tiny_model_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    command = "translate", "--model", tiny_model_path, "--json", "--beam", "4", "--length-penalty", "0.5"
    code, out, _ = nmt_here(*command, "--nbest", "3", "--prefix", "A", "Ein Hund läuft.", "")
    assert code == 0
    found, blank = map(json.loads, out.splitlines())
    assert list(found)[:3] == ["source", "translation", "score"]
    assert set(found) - set(blank) == set()
    assert (found["source"], blank["source"]) == ("Ein Hund läuft.", "")
    assert [blank["translation"], blank["score"], blank["alignment"]] == ["", 0.0, []]
    assert len(found["nbest"]) == 3
    assert found["nbest"][0].items() <= found.items()
    scores = [each["score"] for each in found["nbest"]]
    assert scores == sorted(scores, reverse=True)
    for each in found["nbest"]:
        assert each["translation"].startswith("A")
        assert each["log_prob"] == pytest.approx(sum(each["token_log_probs"]))
        assert each["score"] == pytest.approx(each["log_prob"] / len(each["token_log_probs"]) ** 0.5)
        assert len(each["tokens"]) == len(each["alignment"])
        assert all(0 <= place < len(found["source_tokens"]) for place in each["alignment"])
    plain = nmt_here(*command, "--prefix", "A", "Ein Hund läuft.")[1]
    assert "nbest" not in json.loads(plain)
    assert json.loads(plain)["translation"] == found["translation"]


def test_the_options_of_the_search_reach_it_and_what_cannot_be_is_one_error(
    tiny_model_path: Path, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    command = "translate", "-q", "--model", tiny_model_path
    sentence = "Eine Frau und ein Mann sitzen auf einer Bank."
    drawn = [nmt_here(*command, "--sample", "3", "--seed", seed, sentence)[1] for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] == nmt_here(*command, "--sample", "3", sentence)[1] != drawn[2]
    again = shutil.copy(tiny_model_path, tmp_path)
    both = nmt_here(*command, "--model", again, "--batch-tokens", "1", sentence)
    assert both == nmt_here(*command, sentence)
    for wrong, said in (
        (
            ("--beam", "2", "--nbest", "3", "--json"),
            "3 translations of a sentence cannot come from a beam of 2",
        ),
        (("--copy-unknown",), "unknown words are copied by word models"),
        (("--sample", "0"), "a sampling temperature of 0"),
    ):
        code, out, err = nmt_here(*command, *wrong, sentence)
        assert (code, out) == (2, "")
        assert said in err
        assert err.startswith("error: ")


def test_a_file_of_another_language_than_the_models_is_told_of(
    tiny_model_path: Path, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    source = tmp_path / "in.fr"
    source.write_text("Un chien.\n", "utf-8")
    code, out, err = nmt_here("translate", "-q", "--model", tiny_model_path, "-i", source)
    assert (code, out.count("\n")) == (0, 1)
    assert err.startswith(f"warning: {source} ends in .fr, but the model reads de\n")


@pytest.mark.parametrize(
    "words",
    [
        ("translate", "Ein Hund.", "--model", "--model"),
        ("evaluate", "--model", "--model"),
        ("compare", "", ""),
    ],
)
def test_a_model_that_is_named_twice_is_refused_before_it_is_loaded(
    words: tuple[str, ...], tiny_model_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    *start, first, second = words
    options = [word for word in (first, tiny_model_path, second, tiny_model_path.parent) if word]
    code, out, err = nmt_here(*start, *options)
    assert (code, out) == (2, "")
    assert err == f"error: {tiny_model_path} is given twice\nhint: name different models\n"


def test_a_file_is_not_held_in_memory_and_its_progress_goes_to_the_log(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nmt_here: Callable[..., Answer]
) -> None:
    import nmt.data.corpus
    import nmt.progress
    import nmt.translate

    monkeypatch.setattr(nmt.progress, "INTERVAL_S", 0.0)
    monkeypatch.setattr(nmt.translate, "CHUNK_LINES", 2)
    monkeypatch.setattr(nmt.data.corpus, "read_lines", None)
    source = tmp_path / "in.de"
    source.write_text("Ein Hund.\n\nEine Frau.\n", "utf-8")
    code, out, err = nmt_here("translate", "--model", tiny_model_path, "-i", source)
    assert (code, out.count("\n")) == (0, 3)
    assert err.splitlines()[1:] == [f"translating: {count} of 3 sentences" for count in (1, 2, 3)]
    assert "translating" not in nmt_here("translate", "-q", "--model", tiny_model_path, "-i", source)[2]
    source.write_text("")
    assert nmt_here("translate", "--model", "nowhere", "-i", source) == (0, "", "")


def test_a_terminal_that_shows_the_lines_shows_no_bar(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nmt_here: Callable[..., Answer]
) -> None:
    source = tmp_path / "in.de"
    source.write_text("Ein Hund.\n", "utf-8")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "translating" in nmt_here("translate", "--model", tiny_model_path, "-i", source)[2]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "translating" not in nmt_here("translate", "--model", tiny_model_path, "-i", source)[2]


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "does not exist"), (b"gut\nschlecht \xff\n", "line 2"), (b"\x1f\x8b\x08broken", "gzip")],
)
def test_an_input_that_cannot_be_read_is_exit_2_before_any_work(
    content: bytes | None, said: str, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    source = tmp_path / "in.de"
    if content is not None:
        source.write_bytes(content)
    code, out, err = nmt_here(
        "translate", "--model", tmp_path / "no model", "-i", source, "-o", tmp_path / "out"
    )
    assert (code, out) == (2, "")
    assert said in err
    assert "no model" not in err
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_is_not_there_is_named(tmp_path: Path, nmt_here: Callable[..., Answer]) -> None:
    code, _, err = nmt_here("translate", "Ein Hund läuft.", "-o", tmp_path / "gone" / "out")
    assert code == 2
    assert f"there is no folder {tmp_path / 'gone'}" in err


def test_the_environment_names_the_model_and_the_option_goes_before_it(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch, nmt_here: Callable[..., Answer]
) -> None:
    monkeypatch.setenv("NMT_MODEL", str(tiny_model_path.parent))
    code, out, err = nmt_here("translate", "Ein Hund läuft.")
    assert (code, out.count("\n")) == (0, 1)
    assert str(tiny_model_path) in err
    assert nmt_here("translate", "--model", "nowhere", "Ein Hund läuft.")[0] == 2


def test_without_an_option_the_model_is_the_environments_then_the_runs_then_the_one_that_comes_with_nmt(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nmt_here: Callable[..., Answer]
) -> None:
    monkeypatch.chdir(tmp_path)
    comes_with_nmt = "model multi30k-de-en, which comes with nmt, on "

    def said(*options: str | Path) -> str:
        code, out, err = nmt_here("translate", *options, "Ein Hund läuft.")
        assert (code, out.count("\n"), err.count("\n")) == (0, 1, 1)
        return err

    for options in ((), ("--config", "base.yaml"), ("--config", "word.yaml"), ("--model", "multi30k-de-en")):
        assert said(*options).startswith(comes_with_nmt)
    assert list(tmp_path.iterdir()) == []
    Path("runs/base").mkdir(parents=True)  # a run without a model yet
    assert said().startswith(comes_with_nmt)
    shutil.copy(tiny_model_path, "runs/base")
    assert said().startswith("model runs/base/best.safetensors on ")
    assert said("--config", "word.yaml").startswith(comes_with_nmt)
    shutil.copy(tiny_model_path, "named.safetensors")
    monkeypatch.setenv("NMT_MODEL", "named.safetensors")
    assert said().startswith("model named.safetensors on ")
    assert said("--model", "multi30k-de-en").startswith(comes_with_nmt)
    monkeypatch.setenv("NMT_MODEL", "multi30k-de-en")
    assert said().startswith(comes_with_nmt)


def test_a_config_of_other_languages_than_the_models_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nmt_here: Callable[..., Answer]
) -> None:
    monkeypatch.chdir(tmp_path)
    both = "--model", "multi30k-de-en", "--config"
    for command in (("translate", "A dog runs."), ("evaluate", "--split", "val")):
        code, out, err = nmt_here(*command, *both, "en-de.yaml")
        assert (code, out) == (2, "")
        assert "translates de to en, but en-de.yaml is for en to de\nhint: name just one of the two" in err
    assert nmt_here("translate", "Ein Hund läuft.", *both, "word.yaml")[0] == 0


def test_the_attention_of_one_sentence_is_drawn_beside_its_translation(
    tiny_model_path: Path, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    picture = tmp_path / "attention.png"
    sentence = "translate", "--model", tiny_model_path, "Ein Hund läuft."
    code, out, err = nmt_here(*sentence, "--attention", picture)
    assert code == 0
    assert out == nmt_here(*sentence)[1]
    assert f"attention drawn: {picture}" in err
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["Ein Hund.", "Eine Frau."], "draws one sentence, and here is more than one"),
        (["-i", "two.de"], "draws one sentence, and here is more than one"),
        (["-i", "none.de"], "draws one sentence, and here is none"),
    ],
)
def test_attention_of_none_or_several_sentences_is_refused_before_any_model_is_loaded(
    texts: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nmt_here: Callable[..., Answer],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.de").write_text("Ein Hund.\nEine Frau.\n")
    Path("none.de").write_text("")
    code, out, err = nmt_here("translate", "--model", "nowhere", "--attention", "a.png", *texts)
    assert (code, out) == (2, "")
    assert said in err
    assert not Path("a.png").exists()


def test_attention_of_a_blank_sentence_is_refused_in_one_line(
    tiny_model_path: Path, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    picture = tmp_path / "a.png"
    code, out, err = nmt_here("translate", "-q", "--model", tiny_model_path, "--attention", picture, " ")
    assert (code, out) == (2, "")
    assert err.startswith("error: a blank line has no attention\n")
    assert not picture.exists()


# --- inspect ----------------------------------------------------------------------------------------------


def test_inspect_describes_the_base_config_where_nothing_is_named(nmt_here: Callable[..., Answer]) -> None:
    code, out, err = nmt_here("inspect")
    assert (code, err) == (0, "")
    assert out == nmt_here("inspect", "base.yaml")[1]
    assert "encoder" in out
    assert "config" in out


def test_inspect_takes_a_run_folder_a_config_and_settings_and_prints_one_json_object(
    tiny_model_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    code, out, err = nmt_here("inspect", tiny_model_path.parent, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["path"] == str(tiny_model_path)
    code, out, _ = nmt_here("inspect", "base", "--json", "-s", "model.d_model=64")
    assert code == 0
    assert json.loads(out)["config"]["model"]["d_model"] == 64


def test_inspect_draws_positions(tmp_path: Path, nmt_here: Callable[..., Answer]) -> None:
    picture = tmp_path / "positions.png"
    code, _, err = nmt_here("inspect", "base.yaml", "--positions", picture)
    assert (code, err) == (0, f"positions drawn: {picture}\n")
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    learned = "-s", "model.positions=learned"
    code, out, err = nmt_here("inspect", "base.yaml", *learned, "--positions", picture)
    assert (code, out) == (2, "")
    assert "nothing has learned them yet" in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such model file or run folder, nor is it a config"),
        (b"\0" * 100, "is no whole model file"),
        (b"learing_rate: 1\n", "unknown key learing_rate"),
    ],
)
def test_inspect_says_in_two_lines_what_it_cannot_read(
    content: bytes | None, said: str, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    path = tmp_path / "thing"
    if content is not None:
        path.write_bytes(content)
    code, out, err = nmt_here("inspect", path)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 2


# --- evaluate ---------------------------------------------------------------------------------------------


def test_evaluate_prints_score_and_signature_and_keeps_what_it_scored(
    tiny_model_path: Path, tiny_folder: Path, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    files = ("--input", tiny_folder / "test.de", "--reference", tiny_folder / "test.en")
    code, out, _ = nmt_here("evaluate", "--model", tiny_model_path, *files, "--out", tmp_path)
    assert code == 0
    assert "BLEU = " in out
    assert "tok:13a" in out
    assert (tmp_path / "test.de.ref.en").read_bytes() == (tiny_folder / "test.en").read_bytes()
    code, out, _ = nmt_here("evaluate", "--model", tiny_model_path, *files, "--out", tmp_path, "--json")
    assert code == 0
    assert json.loads(out)["score"]["name"] == "BLEU"


def test_a_reference_one_line_short_is_refused_with_both_counts(
    tiny_model_path: Path, tiny_folder: Path, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    short = tmp_path / "short.en"
    short.write_bytes(b"".join((tiny_folder / "test.en").read_bytes().splitlines(keepends=True)[:-1]))
    code, out, err = nmt_here(
        "evaluate", "--model", tiny_model_path, "--input", tiny_folder / "test.de", "--reference", short
    )
    assert (code, out) == (2, "")
    assert "has 30 lines" in err
    assert "has 29" in err


def test_scoring_by_a_config_needs_none_of_its_extra_pairs(
    tiny_model_path: Path,
    tiny_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nmt_here: Callable[..., Answer],
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tiny_config.data.model_copy(update={"extra": "nowhere/pairs"})
    Path("mine.yaml").write_text(tiny_config.replace(data=data).to_yaml(), "utf-8")
    named = ("--model", tiny_model_path, "--config", "mine.yaml", "--split", "val")
    code, out, err = nmt_here("evaluate", *named, "--out", tmp_path)
    assert code == 0, err
    assert "val: BLEU" in out


def test_evaluate_takes_several_splits_models_and_another_search(
    tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    shared = ("--data", tiny_prepared.folder, "--out", tmp_path)
    code, out, _ = nmt_here("evaluate", "--model", tiny_model_path, *shared, "--split", "all", "--json")
    assert code == 0
    assert list(json.loads(out)["splits"]) == ["val", "test"]
    search = ("--beam", 2, "--length-penalty", 0.5, "--report", tmp_path / "page.html")
    again = shutil.copy(tiny_model_path, tmp_path)
    models = ("--model", tiny_model_path, "--model", again)
    code, out, err = nmt_here("evaluate", *models, *shared, *search, "--split", "test", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["split"], found["beam"], found["length_penalty"]) == ("test", 2, 0.5)
    assert found["models"] == [str(tiny_model_path), str(again)]
    assert f"report: {tmp_path / 'page.html'}" in err
    assert (tmp_path / "page.html").is_file()


def test_evaluate_scores_the_model_that_comes_with_nmt_on_text_that_is_named(
    tiny_prepared: PreparedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nmt_here: Callable[..., Answer],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = nmt_here("evaluate", "--data", tiny_prepared.folder, "--split", "test", "--beam", "1")
    assert code == 0
    assert "which comes with nmt" in err
    assert "hypotheses: runs/multi30k-de-en/evaluation/test.hyp.en" in out
    Path("mine.yaml").write_text(f"extends: base.yaml\ndata: {{source: {tiny_prepared.folder}}}\n")
    shared = ("--split", "test", "--beam", "1", "--model", "multi30k-de-en", "--config", "mine.yaml")
    assert nmt_here("evaluate", *shared)[1].splitlines()[:3] == out.splitlines()[:3]


# --- compare ----------------------------------------------------------------------------------------------


def test_compare_takes_models_and_files(
    tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    hypotheses = tmp_path / "hypotheses"
    hypotheses.write_text("A dog.\n" * 30, "utf-8")
    shared = ("--data", tiny_prepared.folder, "--split", "test")
    code, out, _ = nmt_here("compare", tiny_model_path, hypotheses, *shared)
    assert code == 0
    assert out.startswith("test: 30 sentences, ")
    assert "randomisation p" in out
    code, json_out, _ = nmt_here("compare", tiny_model_path, hypotheses, *shared, "--json")
    assert code == 0
    assert json.loads(json_out)["sentences"] == 30
    code, out, _ = nmt_here("compare", "multi30k-de-en", hypotheses, *shared, "--beam", "1")
    assert (code, out.startswith("test: 30 sentences, ")) == (0, True)
    (tmp_path / "short").write_text("A dog.\n", "utf-8")
    code, out, err = nmt_here("compare", hypotheses, hypotheses, "--reference", tmp_path / "short")
    assert (code, out) == (2, "")
    assert "has 30 lines" in err
    assert "has 1" in err


# --- prepare and train ------------------------------------------------------------------------------------


@pytest.fixture
def tiny_yaml(tiny_config: Config, tmp_path: Path) -> Path:
    """`tiny_config` as a file, in a folder of its own to work in."""
    path = tmp_path / "tiny.yaml"
    path.write_text(tiny_config.to_yaml(), "utf-8")
    return path


@pytest.mark.slow
def test_prepare_reads_utf8_whatever_the_locale(tiny_yaml: Path) -> None:
    locales: dict[str, dict[str, str]] = {
        "utf8": {"PYTHONUTF8": "1"},
        "ascii": {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"},
    }
    for name, locale in locales.items():
        answer = nmt_process(
            "prepare", "--config", tiny_yaml, "--out", name, folder=tiny_yaml.parent, **locale
        )
        assert answer.returncode == 0, answer.stderr
    folders = [tiny_yaml.parent / name for name in locales]
    files = sorted(path.relative_to(folders[0]) for path in folders[0].rglob("*") if path.is_file())
    assert files
    for file in files:
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes(), file


@pytest.mark.slow
def test_training_says_how_to_use_the_model_and_only_that_on_standard_output(tiny_yaml: Path) -> None:
    answer = nmt_process("train", "--config", tiny_yaml, "-s", "train.max_steps=2", folder=tiny_yaml.parent)
    assert answer.returncode == 0, answer.stderr
    assert b"\r" not in answer.stderr
    score, use = answer.stdout.decode("utf-8").splitlines()
    assert score.startswith("BLEU on val: ")
    assert use.startswith("to use it: nmt translate --model runs/tiny/best.safetensors ")
    words = shlex.split(use.removeprefix("to use it: nmt "))
    assert nmt_process(*words, folder=tiny_yaml.parent).stdout.count(b"\n") == 1

    again = nmt_process("train", "--config", tiny_yaml, folder=tiny_yaml.parent)
    assert (again.returncode, again.stdout) == (2, b"")
    assert b"--resume" in again.stderr
    assert b"--overwrite" in again.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_a_stopped_training_saves_and_says_how_to_go_on(tiny_yaml: Path) -> None:
    metrics = tiny_yaml.parent / "runs" / "tiny" / "metrics.jsonl"
    settings = ["-s", "train.epochs=9999", "-s", "train.log_every_steps=1"]
    with subprocess.Popen(
        [*COMMAND, "train", "--config", "tiny.yaml", *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tiny_yaml.parent,
        env=environment(),
    ) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        watchdog.cancel()
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    going_on = err.decode("utf-8").splitlines()[-1].partition("to go on: nmt ")[2]
    assert going_on.endswith("--resume")
    answer = nmt_process(*shlex.split(going_on), "-s", "train.max_steps=1", folder=tiny_yaml.parent)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143), (10, 138), (None, 0)])
def test_the_exit_code_of_a_stopped_training_names_its_signal(
    number: int | None, code: int, monkeypatch: pytest.MonkeyPatch, nmt_here: Callable[..., Answer]
) -> None:
    import nmt.train

    model = Path("runs/x/last.safetensors")
    result = nmt.train.TrainingResult(Path("runs/x"), model, load_config("base.yaml"), None, 7, number)
    monkeypatch.setattr(nmt.train, "train", lambda *_, **__: result)
    got, out, err = nmt_here("train", "--overwrite", "--run-dir", "a folder", "-s", "seed=3")
    assert got == code
    assert ("to go on: nmt train --run-dir 'a folder' -s seed=3 --resume" in err) == (number is not None)
    assert ("nmt translate --model" in out) == (number is None)


def test_the_input_is_not_overwritten_by_its_translation(
    tiny_model_path: Path, tmp_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    source = tmp_path / "source.txt"
    source.write_text("Ein Hund.\n", "utf-8")
    code, _, err = nmt_here(
        "translate", "--model", str(tiny_model_path), "-i", str(source), "-o", str(source)
    )
    assert code == 2
    assert "is the input" in err
    assert source.read_text("utf-8") == "Ein Hund.\n"


def test_a_sentence_that_is_the_name_of_a_file_is_translated_with_a_warning(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nmt_here: Callable[..., Answer]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("source.de").write_text("Ein Hund.\nEine Katze.\n", "utf-8")
    for words in (("source.de",), ("Ein Hund.", "source.de")):
        code, out, err = nmt_here("translate", "--model", str(tiny_model_path), *words)
        assert code == 0
        assert len(out.splitlines()) == len(words)
        assert "for the lines of the file: --input source.de" in err
    _, _, err = nmt_here("translate", "--model", str(tiny_model_path), "Ein Hund.", "a" * 5000)
    assert "--input" not in err


def test_a_mistyped_config_is_an_error_beside_a_model_too(
    tiny_model_path: Path, nmt_here: Callable[..., Answer]
) -> None:
    code, _, err = nmt_here("translate", "--model", str(tiny_model_path), "--config", "bsae.yaml", "Hund")
    assert code == 2
    assert "bsae.yaml" in err


# --- things taken for each other --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evaluate", "--report", "model.safetensors"), "name ends in .html"),
        (("translate", "--model", "a.yaml", "Ein Hund."), "a.yaml is a config, not a model"),
        (("train", "--config", "b.safetensors"), "b.safetensors is a model, not a config"),
        (("compare", "c.en", "d.en"), "two files of translations need references"),
    ],
)
def test_what_is_taken_for_something_else_is_named_with_the_way_out(
    words: tuple[str, ...],
    said: str,
    nmt_here: Callable[..., Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("seed: 1")
    Path("b.safetensors").write_bytes(b"\xff\xfe\0\0")
    for name in ("c.en", "d.en"):
        Path(name).write_text("A dog.")
    code, out, err = nmt_here(*words)
    assert (code, out) == (2, "")
    assert said in err

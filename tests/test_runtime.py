"""Device, precision, folders and signals, on machines that are only pretended."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt import runtime
from nmt.errors import DeviceError, MachineError
from nmt.runtime import NvidiaDriver, Ranks, StopSignals, is_out_of_memory, joined_ranks, mixed_seed

ROOT = Path(__file__).resolve().parent.parent

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
DRIVER = NvidiaDriver("535.104.05", "12.2")

SMI_TABLE = """
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.104.05             Driver Version: 535.104.05   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
"""
NEWER_SMI_TABLE = """
| NVIDIA-SMI 595.10    KMD Driver Version: 595.10    CUDA UMD Version: 13.2 |
"""


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with nothing but a CPU, whatever the tests run on."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(runtime, "cuda_mismatch_warning", lambda: None)


@pytest.fixture
def one_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one CUDA device; nothing can really be computed on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch, "ones", lambda *shape, device: torch.zeros(*shape))


# --- the device -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("bare_machine")
def test_auto_is_the_cpu_where_there_is_nothing_else() -> None:
    assert runtime.select_device() == CPU
    assert runtime.select_device("cpu") == CPU


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize("name", ["cuda", "cuda:3", "mps"])
def test_a_missing_device_is_named_in_one_line_with_what_is_here(name: str) -> None:
    with pytest.raises(DeviceError) as caught:
        runtime.select_device(name)
    assert repr(name) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint == "choose auto or one that is here: cpu"


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize("name", ["gpu", "", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cpu:1", "meta", "auto "])
def test_a_name_that_is_no_device_is_refused_with_the_names_there_are(name: str) -> None:
    with pytest.raises(DeviceError, match="unknown device") as caught:
        runtime.select_device(name)
    assert "cuda:N" in (caught.value.hint or "")


@pytest.mark.usefixtures("one_cuda_device")
def test_auto_takes_cuda_before_mps_and_mps_before_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert runtime.select_device("auto") == CUDA
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(runtime, "cuda_mismatch_warning", lambda: None)
    assert runtime.select_device("auto") == torch.device("mps")
    assert runtime.select_device("mps") == torch.device("mps")


@pytest.mark.usefixtures("one_cuda_device")
def test_cuda_without_a_number_is_the_first_one_and_one_too_many_is_refused() -> None:
    assert runtime.select_device("cuda") == CUDA
    with pytest.raises(
        DeviceError, match=r"'cuda:1': .*last CUDA device of this machine is cuda:0"
    ) as caught:
        runtime.select_device("cuda:1")
    assert "cuda:0, " in (caught.value.hint or "")


@pytest.mark.usefixtures("one_cuda_device")
def test_a_device_that_is_found_but_fails_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_kernel(*shape: int, device: torch.device) -> torch.Tensor:
        raise RuntimeError("CUDA error: no kernel image is available\nCompile with ...")

    monkeypatch.setattr(torch, "ones", no_kernel)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(runtime, "cuda_mismatch_warning", lambda: "driver and torch do not fit")
    with caplog.at_level(logging.WARNING, logger="nmt"):
        assert runtime.select_device("auto") == CPU
    assert [record.message for record in caplog.records] == ["driver and torch do not fit"]

    monkeypatch.setattr(runtime, "cuda_mismatch_warning", lambda: None)
    with pytest.raises(DeviceError, match="no kernel image is available") as caught:
        runtime.select_device("cuda")
    assert "\n" not in caught.value.message


def test_the_line_about_the_device_names_threads_and_precision() -> None:
    assert runtime.device_line(CPU).startswith(f"cpu, {torch.get_num_threads()} threads, ")
    assert runtime.device_line(CPU, torch.bfloat16).endswith(", bf16")
    assert runtime.device_line(CPU, torch.float32).endswith(", float32")


# --- an NVIDIA device that torch cannot use ---------------------------------------------------------------


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize(("built_for", "words"), [(None, "a CPU build"), ("13.0", "built for CUDA 13.0")])
def test_a_device_out_of_reach_gives_one_line_with_both_versions_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch, built_for: str | None, words: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.version, "hip", None)
    warning = runtime.cuda_mismatch_warning(lambda: DRIVER)
    assert warning is not None
    assert "\n" not in warning
    for part in ("535.104.05", "12.2", torch.__version__, words, "https://pytorch.org", "constraints"):
        assert part in warning


@pytest.mark.usefixtures("no_cuda")
def test_there_is_no_warning_without_a_driver_or_with_the_device_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert runtime.cuda_mismatch_warning(lambda: None) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert runtime.cuda_mismatch_warning(lambda: DRIVER) is None


@pytest.mark.usefixtures("one_cuda_device")
def test_there_is_no_warning_where_torch_can_use_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert runtime.cuda_mismatch_warning(lambda: DRIVER) is None


@pytest.mark.usefixtures("no_cuda")
def test_a_named_device_out_of_reach_is_refused_with_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "cuda_mismatch_warning", lambda: "driver 1 and torch 2 do not fit")
    with pytest.raises(DeviceError, match="device 'cuda': driver 1 and torch 2 do not fit"):
        runtime.select_device("cuda")


def _script(folder: Path, body: str) -> str:
    """A command that behaves as `nvidia-smi` might; returns its path."""
    path = folder / "smi"
    path.write_text(f"#!{sys.executable}\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(os.name == "nt", reason="the pretended command is a script")
@pytest.mark.parametrize(
    ("body", "driver"),
    [
        (f"print({SMI_TABLE!r})", DRIVER),
        (f"print({NEWER_SMI_TABLE!r})", NvidiaDriver("595.10", "13.2")),
        ("print('Driver Version: 390.157')", NvidiaDriver("390.157", None)),
        ("print('No devices were found')", None),
        (f"print({SMI_TABLE!r}); raise SystemExit(9)", None),
        ("import time; time.sleep(60)", None),
    ],
)
def test_the_driver_is_what_nvidia_smi_says_if_it_works(
    tmp_path: Path, body: str, driver: NvidiaDriver | None
) -> None:
    timeout_s = 1.0 if "sleep" in body else 30.0
    found = runtime.find_nvidia_driver(
        command=(_script(tmp_path, body),), kernel_file=tmp_path / "none", timeout_s=timeout_s
    )
    assert found == driver


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104.05  Release Build",
    ],
)
def test_the_kernel_file_counts_only_where_a_device_is_beside_it(tmp_path: Path, line: str) -> None:
    kernel_file = tmp_path / "version"
    kernel_file.write_text(f"{line}\nGCC version:  gcc version 12.3.0\n", encoding="utf-8")

    def find() -> NvidiaDriver | None:
        return runtime.find_nvidia_driver(
            command=("no-such-command-here",), kernel_file=kernel_file, device_folder=tmp_path
        )

    (tmp_path / "nvidiactl").touch()
    assert find() is None
    (tmp_path / "nvidia0").touch()
    assert find() == NvidiaDriver("535.104.05", None)


# --- precision --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "training", "native", "dtype"),
    [
        ("auto", True, True, torch.bfloat16),
        ("auto", True, False, torch.float32),
        ("auto", False, True, torch.float32),
        ("auto", False, False, torch.float32),
        ("float32", True, True, torch.float32),
        ("bf16", True, True, torch.bfloat16),
        ("bf16", False, True, torch.bfloat16),
    ],
)
def test_precision_is_bf16_only_where_it_is_native_and_wanted(
    monkeypatch: pytest.MonkeyPatch,
    name: runtime.Precision,
    training: bool,
    native: bool,
    dtype: torch.dtype,
) -> None:
    monkeypatch.setattr(runtime, "bf16_is_native", lambda device: native)
    assert runtime.select_precision(name, CPU, training=training) == dtype


def test_bf16_by_name_is_refused_where_it_would_be_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "bf16_is_native", lambda device: False)
    with pytest.raises(DeviceError, match="'bf16'") as caught:
        runtime.select_precision("bf16", CPU, training=True)
    assert "float32" in (caught.value.hint or "")


@pytest.mark.parametrize(("avx512", "amx"), [(True, False), (False, True), (False, False)])
def test_a_cpu_has_bf16_with_avx512_bf16_or_amx(
    monkeypatch: pytest.MonkeyPatch, avx512: bool, amx: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert runtime.bf16_is_native(CPU) == (avx512 or amx)


def test_a_torch_without_these_flags_counts_as_without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported")
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert not runtime.bf16_is_native(CPU)


@pytest.mark.parametrize(("capability", "native"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_cuda_device_has_bf16_from_capability_8(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], native: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert runtime.bf16_is_native(CUDA) is native


def test_mps_trains_in_float32() -> None:
    assert runtime.select_precision("auto", torch.device("mps"), training=True) == torch.float32


# --- seeds and versions -----------------------------------------------------------------------------------


def test_a_seed_fixes_all_three_generators() -> None:
    def draw(seed: int) -> tuple[float, float, float]:
        runtime.seed_everything(seed)
        return random.random(), float(np.random.random()), float(torch.rand(()))

    first = draw(2**40)
    assert draw(2**40) == first
    assert all(ours != theirs for ours, theirs in zip(draw(2**40 + 1), first, strict=True))


def test_the_environment_is_plain_json_and_does_not_name_the_user() -> None:
    values = runtime.environment(CPU)
    text = json.dumps(values)
    assert json.loads(text) == values
    assert values["torch"] == torch.__version__
    assert values["torchtext"] == "0.6.0"
    assert str(Path.home()) not in text
    assert os.uname().nodename not in text if hasattr(os, "uname") else True


def test_the_version_names_what_a_bug_report_needs() -> None:
    code = (
        "import sys; from nmt.runtime import version_lines; print(*version_lines(), sep='\\n');"
        "assert not {'spacy', 'torchtext'} & set(sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    starts = [line.split()[0] for line in answer.stdout.splitlines()]
    assert starts == ["nmt", "Python", "torch", "device", "spaCy", "torchtext"]
    assert f"torch {torch.__version__} (" in answer.stdout
    assert "torchtext 0.6.0" in answer.stdout


def test_a_package_that_is_missing_is_said_to_be() -> None:
    assert runtime.package_version("no-such-distribution-here") == "not installed"


# --- what the environment says ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {}, "HOME/.cache/nmt"),
        ("linux", {"XDG_CACHE_HOME": "/x/cache"}, "/x/cache/nmt"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "HOME/.cache/nmt"),
        ("darwin", {"XDG_CACHE_HOME": "/x/cache"}, "HOME/Library/Caches/nmt"),
        ("win32", {"LOCALAPPDATA": "/x/local"}, "/x/local/nmt"),
        ("win32", {}, "HOME/AppData/Local/nmt"),
        ("linux", {"NMT_CACHE": "/mine", "XDG_CACHE_HOME": "/x"}, "/mine"),
        ("linux", {"NMT_CACHE": ""}, "HOME/.cache/nmt"),
        ("linux", {"NMT_CACHE": "~/mine"}, "HOME/mine"),
    ],
)
def test_the_cache_lies_where_the_platform_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, variables: dict[str, str], folder: str
) -> None:
    for name in ("NMT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert runtime.cache_folder() == Path(folder.replace("HOME", str(tmp_path)))


def test_a_user_without_a_home_folder_is_told_how_to_name_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("NMT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(MachineError) as caught:
        runtime.cache_folder()
    assert "NMT_CACHE" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("value", "is_offline"),
    [(None, False), ("", False), ("0", False), ("no", False), ("1", True), ("Yes", True)],
)
def test_offline_is_what_the_variable_says(
    monkeypatch: pytest.MonkeyPatch, value: str | None, is_offline: bool
) -> None:
    monkeypatch.delenv("NMT_OFFLINE", raising=False)
    if value is not None:
        monkeypatch.setenv("NMT_OFFLINE", value)
    assert runtime.offline() is is_offline


def test_the_default_model_is_named_by_the_environment_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_MODEL", "runs/base")
    assert runtime.default_model() == Path("runs/base")
    monkeypatch.setenv("NMT_MODEL", "")
    assert runtime.default_model() is None


# --- signals ----------------------------------------------------------------------------------------------


def _handlers() -> list[object]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.skipif(os.name == "nt", reason="signals are sent with os.kill")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGUSR1", 138)])
def test_a_signal_becomes_a_request_with_its_exit_code(name: str, code: int) -> None:
    before = _handlers()
    with StopSignals() as stop:
        assert stop.requested is None
        os.kill(os.getpid(), getattr(signal, name))
        assert stop.requested == getattr(signal, name)
    assert _handlers() == before
    assert stop.requested is not None
    if sys.platform == "linux":  # SIGUSR1 has another number elsewhere
        assert runtime.exit_code(stop.requested) == code


@pytest.mark.skipif(os.name == "nt", reason="signals are sent with os.kill")
def test_a_second_interrupt_stops_at_once_and_restores_the_handlers() -> None:
    before = _handlers()
    stop = StopSignals()

    def interrupt_twice() -> None:
        with stop:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupt_twice()
    assert stop.requested == signal.SIGINT
    assert _handlers() == before


@pytest.mark.skipif(os.name == "nt", reason="signals are sent with os.kill")
def test_the_first_of_several_signals_counts() -> None:
    with StopSignals() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
    assert stop.requested == signal.SIGTERM


def test_outside_the_main_thread_nothing_is_changed() -> None:
    seen: list[object] = []

    def work() -> None:
        with StopSignals() as stop:
            seen.extend([stop.requested, *_handlers()])

    before = _handlers()
    _in_a_thread(work)
    assert seen == [None, *before]


def _in_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


# --- several processes that train together ----------------------------------------------------------------


TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.mark.parametrize("left_over", [(), ("WORLD_SIZE",), ("RANK", "WORLD_SIZE", "LOCAL_RANK")])
def test_a_process_that_torchrun_did_not_start_is_alone(
    left_over: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    for name in left_over:
        monkeypatch.setenv(name, "4")
    with joined_ranks() as ranks:
        assert ranks == Ranks(rank=0, world=1, local_rank=0, local_world=1)


def test_of_one_process_alone_torch_distributed_is_not_even_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise AssertionError

    monkeypatch.setattr(torch.distributed, "init_process_group", fail)
    for name, value in zip(TORCHRUN, ("0", "1", "0", "1", "localhost", "1"), strict=True):
        monkeypatch.setenv(name, value)  # torchrun --nproc-per-node 1
    network = torch.nn.Linear(1, 1)
    with joined_ranks() as ranks:
        assert ranks.gather("a") == ["a"]
        assert ranks.collect([3, 4]) == [3, 4]
        assert ranks.first(lambda: 5) == 5
        assert ranks.together(lambda: 6) == [6]
        assert list(ranks.share(3)) == [0, 1, 2]
        assert ranks.wrap(network) is network
        values = torch.ones(2)
        assert ranks.sum(values) is values
        with ranks.no_sync(network), ranks.watched():
            pass


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1015])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_the_shares_of_the_ranks_are_put_together_in_the_old_order(
    count: int, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = [list(Ranks(rank, world).share(count)) for rank in range(world)]
    monkeypatch.setattr(Ranks, "gather", lambda self, value: shares)
    assert Ranks(0, world).collect(shares[0]) == list(range(count))


@pytest.mark.usefixtures("one_cuda_device")
@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_more_processes_than_devices_are_named_in_one_line(name: str) -> None:
    for rank in (0, 7):
        with pytest.raises(DeviceError, match=r"8 processes .* 1 CUDA device: 7 too many") as raised:
            runtime.select_device(name, Ranks(rank, 8, rank, 8))
        assert "--nproc-per-node 1" in str(raised.value.hint)


@pytest.mark.usefixtures("bare_machine")
def test_ranks_without_a_cuda_device_share_the_cpu_or_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert runtime.select_device("auto", Ranks(1, 2, 1, 2)) == CPU, "several processes cannot share MPS"
    with pytest.raises(DeviceError, match="no CUDA device"):
        runtime.select_device("cuda", Ranks(1, 2, 1, 2))


@pytest.mark.usefixtures("one_cuda_device")
def test_each_rank_takes_the_device_of_its_place_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert runtime.select_device("auto", Ranks(6, 8, 2, 4)) == torch.device("cuda", 2)
    assert current == [torch.device("cuda", 2)]


@pytest.mark.parametrize("name", ["cuda:1", "mps"])
def test_one_device_by_its_number_is_refused_to_several_ranks(name: str) -> None:
    with pytest.raises(DeviceError, match=f"'{name}' is one device, but 2 processes"):
        runtime.select_device(name, Ranks(0, 2, 0, 2))


def test_mixed_seeds_depend_on_each_number_and_its_place() -> None:
    numbers = [(1, 2, 0, 0), (2, 1, 0, 0), (1, 2, 1, 0), (1, 2, 0, 1), (12, 0, 0), (1, 20, 0)]
    seeds = [mixed_seed(*each) for each in numbers]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [mixed_seed(*each) for each in numbers]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len({seed % 2**32 for seed in map(mixed_seed, range(2000))}) == 2000, "torch's CPU reads 32 bits"


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes."), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_too_little_memory_is_told_from_other_faults(error: Exception, memory: bool) -> None:
    assert is_out_of_memory(error) == memory

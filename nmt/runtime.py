"""What the machine offers and the environment says: device, precision, ranks, seeds, folders, signals.

This is the only module that touches torch.cuda, torch.distributed or os.environ; all others ask here.
torch is imported inside the functions, so that importing this module costs nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from nmt import __version__
from nmt.errors import AnotherRankError, DeviceError, MachineError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

T = TypeVar("T")

log = logging.getLogger("nmt")

Precision = Literal["auto", "float32", "bf16"]
DecodingPrecision = Literal["auto", "float32", "bf16", "int8"]

DEVICE_NAMES = "auto, cpu, cuda, cuda:N or mps"
TORCH_WAY_OUT = (
    "install the torch that suits the driver, as https://pytorch.org/get-started/locally/ says, "
    "then nmt without the constraints"
)


# --- several processes that train together ----------------------------------------------------------------

PEER_TIMEOUT_S = 1800.0
"""How long a rank waits for the others, which may be preparing data or saving; a death is noticed sooner."""

PARTING_TIMEOUT_S = 5.0
"""How long a rank that has failed waits for its connections to close."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes that train together, one a device, and this one's place among them.

    What the methods that communicate take and give are values that JSON can say, or tensors. All ranks call
    them in the same order. A process that is alone calls them for nothing: torch.distributed is not imported.
    They raise MachineError where another rank has died, or keeps this one waiting for PEER_TIMEOUT_S.
    """

    rank: int = 0
    world: int = 1
    """How many they are."""
    local_rank: int = 0
    """The place among those of this machine: the number of its device."""
    local_world: int = 1
    _wrapped: list[nn.Module] = field(default_factory=list, repr=False, compare=False)

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """Which of `count` things fall to this rank: every world-th, so that none comes twice."""
        return range(self.rank, count, self.world)

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, by rank."""
        if self.world == 1:
            return [value]
        import torch
        import torch.distributed as dist

        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        with _peers_alive():
            dist.all_gather(sizes, torch.tensor([len(mine)]))
            longest = max(int(size) for size in sizes)
            buffers = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world)]
            dist.all_gather(buffers, torch.nn.functional.pad(mine, (0, longest - len(mine))))
        return [
            json.loads(buffer[: int(size)].numpy().tobytes())
            for buffer, size in zip(buffers, sizes, strict=True)
        ]

    def collect(self, mine: Sequence[T]) -> list[T]:
        """All results in order, where each rank has those of its `share`."""
        parts = self.gather(list(mine))
        total = sum(map(len, parts))
        return [parts[index % self.world][index // self.world] for index in range(total)]

    def together(self, action: Callable[[], T]) -> list[T]:
        """Every rank does `action`; the results, by rank.

        Where one fails all fail: the first of those that do raises its error, the others AnotherRankError.
        """
        if self.world == 1:
            return [action()]
        try:
            result = action()
        except Exception as error:
            outcomes = self.gather([False, None])
            if not all(fine for fine, _ in outcomes[: self.rank]):
                raise AnotherRankError from error
            raise
        outcomes = self.gather([True, result])
        if not all(fine for fine, _ in outcomes):
            raise AnotherRankError
        return [value for _, value in outcomes]

    def first(self, action: Callable[[], T]) -> T:
        """Rank 0 does `action` and all get its result; where it fails all fail, as in `together`."""
        if self.world == 1:
            return action()
        result: T = self.together(action if self.is_first else _nothing)[0]
        return result

    def sum(self, values: Tensor) -> Tensor:
        """The sum of every rank's tensor, on its device."""
        if self.world == 1:
            return values
        import torch.distributed as dist

        total = values.clone()
        with _peers_alive():
            dist.all_reduce(total)
        return total

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module, with gradients that become the mean over the ranks in each backward pass."""
        if self.world == 1:
            return module
        from torch.nn.parallel import DistributedDataParallel

        with _peers_alive(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 has a second name for the option
            # a buffer is a table that each rank makes for itself, as long as it needs it
            self._wrapped.append(DistributedDataParallel(module, broadcast_buffers=False))
        return self._wrapped[-1]

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """Within it the gradients of what `wrap` gave are summed up here, and sent only after it."""
        return nullcontext() if self.world == 1 else module.no_sync()  # type: ignore[operator]

    def watched(self) -> AbstractContextManager[None]:
        """Within it, a wrapped module's backward pass that another rank has left raises MachineError."""
        return nullcontext() if self.world == 1 else _peers_alive()


ALONE = Ranks()
"""One process by itself."""


def _nothing() -> Any:
    return None


@contextmanager
def _peers_alive() -> Iterator[None]:
    """Say in one line what torch says of a closed connection or a long wait."""
    try:
        yield
    except RuntimeError as error:
        from torch.distributed import DistError

        if isinstance(error, DistError) or re.search("gloo|nccl|[Cc]onnection", str(error)):
            raise MachineError(
                "another process of this training has ended, or no longer answers",
                hint="its own last message says why; go on with the same command and --resume",
            ) from error
        raise


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """This process among those that torchrun started, connected while the block runs; else one alone.

    Ranks other than the first log only warnings and worse. On CUDA they talk through nccl, else through gloo.
    """
    ranks = _ranks_of_environment()
    if ranks.world == 1:
        yield ALONE
        return
    import torch
    import torch.distributed as dist
    import torch.distributed.nn  # imported later, its default arguments would hold the connection

    both = torch.cuda.is_available() and dist.is_nccl_available()
    level = log.level
    with _peers_alive():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if both else "gloo", timeout=timedelta(seconds=PEER_TIMEOUT_S)
        )
    if not ranks.is_first:
        log.setLevel(max(level, logging.WARNING))
    try:
        yield ranks
        _disconnect(ranks)
    except Exception:  # the other ranks may not be there to agree
        leaving = threading.Thread(target=_disconnect, args=(ranks,), daemon=True)
        leaving.start()
        leaving.join(PARTING_TIMEOUT_S)
        raise
    finally:
        log.setLevel(level)


def _disconnect(ranks: Ranks) -> None:
    """End the connection and, with the last that holds it, its threads.

    A thread of gloo that lets go of a tensor needs Python, and would abort the process where that has ended.
    """
    import torch.distributed as dist

    for module in ranks._wrapped:  # others may hold it still
        for name in ("reducer", "logger", "process_group"):
            setattr(module, name, None)
    ranks._wrapped.clear()
    dist.destroy_process_group()


def _ranks_of_environment() -> Ranks:
    """What torchrun tells the processes it starts; without all of that, one alone."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if any(name not in os.environ for name in (*names, "MASTER_ADDR", "MASTER_PORT")):
        return ALONE
    rank, world, local_rank, local_world = (int(os.environ[name]) for name in names)
    return Ranks(rank, world, local_rank, local_world)


# --- the device -------------------------------------------------------------------------------------------


def select_device(name: str = "auto", ranks: Ranks = ALONE) -> torch.device:
    """Turn a device's name into one this machine can use; `auto` takes CUDA, then MPS, then the CPU.

    Of several ranks each gets a CUDA device of its own, or all take the CPU. Where `auto` passes over an
    NVIDIA device that this torch cannot use, one warning says so.

    Raises DeviceError where a named device is missing, the name is none, or there are too few for the ranks.
    """
    import torch

    if ranks.world > 1:
        return _device_of_rank(name, ranks)
    if name == "auto":
        if _cuda_fault(torch.device("cuda", 0)) is None:
            return torch.device("cuda", 0)
        if mismatch := cuda_mismatch_warning():
            log.warning(mismatch)
        return torch.device("mps") if torch.backends.mps.is_available() else torch.device("cpu")

    device = _parse_device(name)
    if device.type == "cuda" and (fault := _cuda_fault(device)):
        raise DeviceError(f"device {name!r}: {cuda_mismatch_warning() or fault}", hint=_other_devices())
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceError(f"device {name!r}: this machine or this torch has no MPS", hint=_other_devices())
    return device


def _device_of_rank(name: str, ranks: Ranks) -> torch.device:
    import torch

    if name == "auto":
        name = select_device().type
        name = "cpu" if name == "mps" else name
    if name not in ("cpu", "cuda"):
        raise DeviceError(
            f"device {name!r} is one device, but {ranks.local_world} processes were started on this machine",
            hint="choose auto, cpu or cuda",
        )
    if name == "cpu":
        return torch.device("cpu")
    device = select_device("cuda")
    count = torch.cuda.device_count()
    if ranks.local_world > count:
        raise DeviceError(
            f"{ranks.local_world} processes were started on this machine, but it has {count} CUDA "
            f"device{'s' if count > 1 else ''}: {ranks.local_world - count} too many",
            hint=f"torchrun --nproc-per-node {count}, or --device cpu",
        )
    device = select_device(f"cuda:{ranks.local_rank}")
    torch.cuda.set_device(device)
    return device


def _parse_device(name: str) -> torch.device:
    import torch

    known = re.fullmatch(r"(cpu|mps|cuda(?::(\d+))?)", name)
    if not known:
        raise DeviceError(f"unknown device {name!r}", hint=f"choose {DEVICE_NAMES}")
    return torch.device("cuda", int(known[2] or 0)) if name.startswith("cuda") else torch.device(name)


def _cuda_fault(device: torch.device) -> str | None:
    """Why this CUDA device cannot be used, or None if it can: it must add two numbers."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own words on an old driver; ours are one line
        if not torch.cuda.is_available():
            return "this machine or this torch has no CUDA device"
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            return f"the last CUDA device of this machine is cuda:{count - 1}"
        try:
            (torch.ones(1, device=device) + 1).item()
        except RuntimeError as error:  # such as "no kernel image": a device older or newer than the build
            return f"it was found but does not work: {str(error).splitlines()[0]}"
    return None


def _other_devices() -> str:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [f"cuda:{index}" for index in range(count)]
    names += ["mps"] if torch.backends.mps.is_available() else []
    return f"choose auto or one that is here: {', '.join([*names, 'cpu'])}"


def device_line(device: torch.device, precision: torch.dtype | None = None) -> str:
    """The device in words: `cpu, 2 threads, AMD EPYC` or `cuda:0, NVIDIA H200, 139 GiB, bf16`."""
    import torch

    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        words = [str(device), properties.name, f"{properties.total_memory / 2**30:.0f} GiB"]
    else:
        words = [str(device), f"{torch.get_num_threads()} threads", _processor_name()]
    if precision is not None:
        words.append("bf16" if precision == torch.bfloat16 else str(precision).removeprefix("torch."))
    return ", ".join(words)


def _processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(\S.*)$", text, re.M)
    return found[1].strip() if found else platform.processor() or platform.machine() or "unknown processor"


@dataclass(frozen=True, slots=True)
class NvidiaDriver:
    """An NVIDIA driver with a device behind it: its version, and the newest CUDA it runs if that is known."""

    version: str
    cuda: str | None

    def __str__(self) -> str:
        return f"{self.version} (CUDA {self.cuda})" if self.cuda else self.version


def find_nvidia_driver(
    *,
    command: Sequence[str] = ("nvidia-smi",),
    kernel_file: Path = Path("/proc/driver/nvidia/version"),
    device_folder: Path = Path("/dev"),
    timeout_s: float = 10.0,
) -> NvidiaDriver | None:
    """The NVIDIA driver of this machine, or None where there is none or it has no device.

    A container shows its host's kernel file even without a device, so that file alone proves nothing.
    """
    table = _output_of(command, timeout_s)
    if version := re.search(r"Driver Version\s*:\s*(\d[\d.]*)", table):
        cuda = re.search(r"CUDA(?: UMD)? Version\s*:\s*(\d[\d.]*)", table)
        return NvidiaDriver(version[1], cuda[1] if cuda else None)
    try:
        version = re.search(r"^NVRM version:.*?\s(\d{3,}(?:\.\d+)+)", kernel_file.read_text("utf-8"), re.M)
    except (OSError, UnicodeDecodeError):
        return None
    return NvidiaDriver(version[1], None) if version and any(device_folder.glob("nvidia[0-9]*")) else None


def _output_of(command: Sequence[str], timeout_s: float) -> str:
    """What a command prints, or nothing where it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        answer = subprocess.run(command, capture_output=True, timeout=timeout_s, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.decode("utf-8", "replace")


def cuda_mismatch_warning(find_driver: Callable[[], NvidiaDriver | None] = find_nvidia_driver) -> str | None:
    """One sentence where an NVIDIA device is present that this torch cannot use, else None.

    A device that the user has hidden (`CUDA_VISIBLE_DEVICES=`) is no mismatch.
    """
    import torch

    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or _cuda_fault(torch.device("cuda", 0)) is None:
        return None
    driver = find_driver()
    if driver is None:
        return None
    return (
        f"NVIDIA driver {driver} is present, but torch {torch.__version__} ({_torch_build()}) "
        f"cannot use it: {TORCH_WAY_OUT}"
    )


def _torch_build() -> str:
    import torch

    if torch.version.cuda:
        return f"built for CUDA {torch.version.cuda}"
    return f"built for ROCm {torch.version.hip}" if torch.version.hip else "a CPU build"


# --- precision --------------------------------------------------------------------------------------------


def bf16_is_native(device: torch.device) -> bool:
    """Whether the device computes in bf16 itself: CUDA from capability 8.0, a CPU with AMX or AVX512-BF16."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        return _cpu_says("_is_avx512_bf16_supported") or _cpu_says("_is_amx_tile_supported")
    return False


def _cpu_says(flag: str) -> bool:
    import torch

    return bool(getattr(torch.cpu, flag, bool)())  # private functions: a later torch may drop them


def int8_is_native() -> bool:
    """Whether the CPU multiplies 8-bit numbers itself, and this torch has the kernels for it."""
    import torch

    return "x86" in torch.backends.quantized.supported_engines and _cpu_says("_is_vnni_supported")


def select_precision(name: DecodingPrecision, device: torch.device, *, training: bool) -> torch.dtype:
    """The type to compute in: `auto` trains in bf16 where that is native and otherwise takes float32.

    Decoding is float32 unless another is named: only there it is promised not to depend on the batch.

    Raises DeviceError where bf16 is named and the device would only emulate it, or int8 where it has no
    kernels for that or would have to train.
    """
    import torch

    if name == "int8":
        if training or device.type != "cpu" or not int8_is_native():
            raise DeviceError(
                f"precision 'int8' is for translating on a CPU of the x86 kind, not on {device_line(device)}",
                hint="choose precision auto, float32 or bf16",
            )
        return torch.int8
    if name == "bf16" and not bf16_is_native(device):
        raise DeviceError(
            f"precision 'bf16' would only be emulated, and slow, on this device ({device_line(device)})",
            hint="choose precision auto or float32",
        )
    if name == "bf16" or (name == "auto" and training and bf16_is_native(device)):
        return torch.bfloat16
    return torch.float32


# --- seeds and versions -----------------------------------------------------------------------------------


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators, on every device."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def mixed_seed(*numbers: int) -> int:
    """A seed of 63 bits that whole numbers decide: neighbours give seeds that have nothing in common."""
    digest = hashlib.sha256(json.dumps(numbers).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


PROVENANCE_PACKAGES = ("numpy", "spacy", "torchtext", "sentencepiece", "sacrebleu")


def environment(device: torch.device | None = None) -> dict[str, str | int]:
    """What a run is made with: versions, platform, device if given, threads; nothing that names the user."""
    import torch

    named = {"device": device_line(device)} if device else {}
    return {
        "nmt": __version__,
        "python": platform.python_version(),
        "platform": _platform_name(),
        "torch": str(torch.__version__),
        "torch_build": _torch_build(),
        **named,
        "processors": _processor_count(),
        "threads": torch.get_num_threads(),
        **{name: package_version(name) for name in PROVENANCE_PACKAGES},
    }


def _platform_name() -> str:
    return f"{platform.system()} {platform.machine()}"


def _processor_count() -> int:
    """The processors this process may use, which in a container are fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def package_version(distribution: str) -> str:
    """The version of an installed distribution, read without importing it, or `not installed`."""
    import importlib.metadata

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def version_lines() -> list[str]:
    """What a bug report needs: nmt, Python, torch with its build, the device, spaCy and torchtext."""
    import torch

    return [
        f"nmt {__version__}",
        f"Python {platform.python_version()} ({_platform_name()})",
        f"torch {torch.__version__} ({_torch_build()})",
        f"device {device_line(select_device('auto'))}",
        f"spaCy {package_version('spacy')}",
        f"torchtext {package_version('torchtext')}",
    ]


def spare_the_machine() -> None:
    """Settings of torch's libraries that spare processors and memory; call before torch is imported.

    OpenMP's waiting threads soon sleep: left to spin for long, they made translating one sentence on a busy
    machine take 0.2 to 2.5 s in place of 0.03 s. oneDNN keeps fewer of the kernels that it builds for each
    new shape: 1,024, its default, filled gigabytes and were no faster. What the environment says goes first.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is what Python or torch raise where the memory of device or machine is too short."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = "out of memory|not enough memory|can't allocate memory|ALLOC_FAILED"
    return isinstance(error, RuntimeError) and re.search(words, str(error)) is not None


# --- what the environment says ----------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where downloads are kept: `$NMT_CACHE`, else the platform's cache folder for the user.

    Raises MachineError where the user has no home folder and names no cache.
    """
    if named := os.environ.get("NMT_CACHE"):
        return Path(named).expanduser()
    try:
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "nmt"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "nmt"
        xdg = os.environ.get("XDG_CACHE_HOME", "")  # a relative one is to be ignored, says its specification
        return (Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache") / "nmt"
    except RuntimeError as error:
        raise MachineError(
            "this user has no home folder to keep downloads in", hint="name one: NMT_CACHE=FOLDER"
        ) from error


def offline() -> bool:
    """Whether `NMT_OFFLINE` forbids the network: set, and to neither 0, `false`, `no` nor `off`."""
    return os.environ.get("NMT_OFFLINE", "").strip().lower() not in ("", "0", "false", "no", "off")


def default_model() -> Path | None:
    """The model that `$NMT_MODEL` names: a file or a run folder."""
    named = os.environ.get("NMT_MODEL")
    return Path(named).expanduser() if named else None


# --- signals ----------------------------------------------------------------------------------------------


def exit_code(signum: int) -> int:
    """The exit code of a run that a signal ended: 130, 143, 138 for SIGINT, SIGTERM, SIGUSR1."""
    return 128 + signum


class StopSignals:
    """While entered, SIGINT, SIGTERM and SIGUSR1 only set `requested`, to be looked at after each step.

    The first signal counts; a second SIGINT raises KeyboardInterrupt at once. The former handlers come back
    at the end. Outside the main thread, where Python takes no handlers, `requested` stays None.
    """

    NUMBERS = tuple(
        int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)
    )
    """The signals, where the platform has them."""

    def __init__(self) -> None:
        self.requested: int | None = None
        self._interrupts = 0
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self.NUMBERS:
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former.clear()

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.requested is None:
            self.requested = int(signum)
        if signum == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt

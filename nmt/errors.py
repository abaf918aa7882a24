"""Every error that a user can mend: one message, one hint, exit code 2."""

from __future__ import annotations


class NmtError(Exception):
    """A fault the user can mend; the command line prints `message`, then `hint`, and exits with 2."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(NmtError):
    """A config file, key or value that cannot be used."""


class DataError(NmtError):
    """Text, splits or a prepared folder that cannot be used."""


class DownloadError(NmtError):
    """A file that could not be fetched or does not have the pinned hash."""


class DeviceError(NmtError):
    """A device or precision that this machine or this torch does not have."""


class ModelFileError(NmtError):
    """A model file that is missing, damaged or made by another format."""


class CheckpointError(NmtError):
    """A checkpoint that is missing, damaged or belongs to another run."""


class RunError(NmtError):
    """A run folder that cannot be used the way that was asked for."""


class ExportError(NmtError):
    """A model that cannot be exported as asked for, or a place where something else would be lost."""


class MachineError(NmtError):
    """The machine's limits: disk full, out of memory, no permission."""


class AnotherRankError(NmtError):
    """One of the processes that train together has failed and said why: this one ends without a word."""

    def __init__(self) -> None:
        super().__init__("another process of this training has failed")

"""Defines the errors; a message says what must hold, what came, where, and what to do."""


def printable(text: str) -> str:
    """Escapes what no line can show: ends of lines, control characters, bytes that are no UTF-8."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class EmbedpsError(Exception):
    """Base of all errors of embedps; a command prints one line and ends with `exit_code`."""

    exit_code = 1


class UsageError(EmbedpsError):
    """A flag, a config field or an argument is wrong; nothing was started."""

    exit_code = 2


class DirectoryInUseError(EmbedpsError):
    """Another run trains in the model directory; nothing was started."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: a later try may succeed


class KernelBuildError(EmbedpsError):
    """The C++ kernels cannot be built or loaded."""


class TrainingError(EmbedpsError):
    """Training cannot go on: the loss or the network is not a number."""


class DatasetError(EmbedpsError):
    """A dataset directory, its `_dataset.json` or one of its Parquet files is missing or wrong."""


class CheckpointError(EmbedpsError):
    """A checkpoint directory cannot be read, written or restored."""


class DirectoryTakenError(CheckpointError):
    """Another run commits to the model directory; this run can save nothing any more."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint file is missing, truncated or differs from its checksum."""


class DimMismatchError(CheckpointError):
    """A table's stored shape (dim, optimizer, name) differs from the one declared."""


class ClusterError(EmbedpsError):
    """A task of the cluster cannot be started, reached or kept."""


class ServerLostError(ClusterError):
    """A server is gone or does not answer; the same command resumes from the last checkpoint."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h

"""Gives a run that trains other numbers of tasks: `embedps scale MODEL_DIR --workers 4 --ps 3`.

It must be of a local cluster (--num-ps). With other workers alone it goes on meanwhile: those that
come get units, those that leave end their unit first. With other parameter servers, or with --sync,
other processes are made ready beside those that train, with its rows if memory has room for both.
Then it ends the units that it has begun, saves what has changed and goes on with them: it pauses
for about a second, loses nothing, and says how long.
On a cluster of TF_CONFIG, start or stop workers that it names instead.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from embedps import config_fields
from embedps.config_fields import MAX_SECS, option
from embedps.console import command_line, flags
from embedps.console.lines import say
from embedps.errors import UsageError
from embedps.run import scale_file
from embedps.run.cluster_config import MAX_LOCAL_TASKS
from embedps.storage.file_io import store_of
from embedps.storage.file_lock import RUN_LOCK_NAME, FileLock
from embedps.storage.object_store import as_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """Which run is to have how many parameter servers and workers."""

    directory: str = option(
        dataclasses.MISSING, "a path, or an s3:// or gs:// URL", metavar="DIR", positional=True
    )
    workers: int | None = option(
        None, "how many workers it has from now on", least=1, most=MAX_LOCAL_TASKS
    )
    ps: int | None = option(
        None, "how many parameter servers it has from now on", least=1, most=MAX_LOCAL_TASKS
    )
    wait_secs: float = option(
        60.0, "longest wait for its answer in seconds", above=0, most=MAX_SECS
    )

    def __post_init__(self) -> None:
        config_fields.check(self)
        if self.workers is None and self.ps is None:
            raise UsageError("give --workers, --ps or both: what the run is to have from now on")


def scale(config: ScaleConfig) -> str:
    """Asks a run for other numbers of tasks; returns its answer.

    Raises:
      UsageError: no run trains there, or it refuses.
    """
    model_dir = as_path(config.directory)
    lock = model_dir / RUN_LOCK_NAME
    if not lock.exists() and store_of(model_dir).has_locks:
        raise UsageError(f"no run trains in {model_dir}: give the --model-dir of one")
    if store_of(model_dir).has_locks and (held := FileLock(lock)).acquire():
        held.release()
        raise UsageError(
            f"no run trains in {model_dir} now: --num-ps and --num-workers say how it begins"
        )
    return scale_file.ask(
        model_dir, servers=config.ps, workers=config.workers, wait_secs=config.wait_secs
    )


def main(arguments: Sequence[str], prog: str = "python -m embedps.scale") -> int:
    """Runs the command; returns its exit code."""
    with command_line.sigterm_interrupts():
        say(scale(flags.read(ScaleConfig, arguments, prog, __doc__)))
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

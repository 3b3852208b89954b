"""The memory of tables whose coldest rows are on a local disk."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

from embedps.config_fields import check_types
from embedps.console.lines import say
from embedps.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiered:
    """Memory for the rows in use, and a local disk for all others.

    A row on disk comes back with the same bits when a lookup or an update needs it. Saves,
    evictions and statistics have the rows of both. It is of all tables of a run
    (`--max-memory-bytes`, `--spill-dir`), or of those whose `TableSpec` has it: those with an equal
    one share it.

    Attributes:
      max_memory_bytes: of the tables on each server: the rows in memory, and of every row 20 bytes
        and its index entry. The counters of admission come on top, and up to 4 MiB that are ready
        for more rows.
      directory: of each server, on a local disk; it is made if it is not there. Its files have no
        names and end with the process.
    """

    max_memory_bytes: int
    directory: str

    def __post_init__(self) -> None:
        if isinstance(self.directory, os.PathLike):
            object.__setattr__(self, "directory", os.fspath(self.directory))
        check_types(self, "Tiered.")
        if not 0 < self.max_memory_bytes < 2**63:
            raise UsageError(
                f"max_memory_bytes must be in [1, 2^63) but got {self.max_memory_bytes}"
            )
        if not self.directory:
            raise UsageError("spill_dir must be a directory of each server but is empty")
        if (kind := _kind_in_memory(Path(self.directory))) is not None:
            say(
                f"spill_dir {self.directory} lies in memory here ({kind}), so rows that go there "
                "save none: name a directory on a disk"
            )


def _kind_in_memory(path: Path) -> str | None:
    """Gives the kind of the file system that a path of this machine is on, if that is in memory."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    kinds = {}
    for line in lines:
        mounted, _, kind = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), mounted.split(" ")[4])
        kinds[Path(point)] = kind.split(" ")[0]
    path = path.absolute().resolve()
    found = next((kinds[each] for each in (path, *path.parents) if each in kinds), None)
    return found if found in ("tmpfs", "ramfs") else None

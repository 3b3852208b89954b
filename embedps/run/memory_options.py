"""The memory for a process's tables, and the disk beside it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from embedps.config_fields import MAX_INT64, check, option
from embedps.errors import UsageError

if TYPE_CHECKING:  # it imports TensorFlow, which --help does not wait for
    from embedps.tables.tiered import Tiered


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """How much memory a model's tables may take, and where the other rows are."""

    max_memory_bytes: int = option(
        0,
        "at this many bytes of a model's tables in a process, the rows used least go to "
        "--spill-dir and come back when they are needed; 0: all rows are in memory",
        least=0,
        most=MAX_INT64,
    )
    spill_dir: str | None = option(
        None, "a directory on a local disk of each such process", metavar="DIR"
    )

    def __post_init__(self) -> None:
        check(self)
        if bool(self.max_memory_bytes) != bool(self.spill_dir):
            raise UsageError(
                "max_memory_bytes and spill_dir must be given together but got "
                f"{self.max_memory_bytes} and {self.spill_dir!r}"
            )

    def memory(self) -> Tiered | None:
        """Makes the memory of a collection's tables; None if all rows stay in it."""
        from embedps.tables.tiered import Tiered

        if not self.max_memory_bytes or not self.spill_dir:
            return None
        return Tiered(max_memory_bytes=self.max_memory_bytes, directory=self.spill_dir)

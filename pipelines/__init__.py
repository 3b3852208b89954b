"""Pipelines turn click logs, real or generated, into datasets of Parquet shards.

The modules here are the commands (`ingest`, `criteo`, `generate`, `describe`), the public name
`transforms`, and what several rooms share (`moments`, `criteo_format`). The rooms
`ingestion`, `synthetic` and `report` are below the commands and do not import each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .transforms import Transforms

__all__ = ["Transforms"]


def __getattr__(name: str) -> Any:
    """Imports `Transforms` at its first use, so that `import pipelines` stays fast."""
    if name == "Transforms":
        from .transforms import Transforms

        return Transforms
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

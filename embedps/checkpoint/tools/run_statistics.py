"""What a run last saw of its tables: growth, evictions, load and forecasts, in statistics.json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from embedps.checkpoint.tools.inspect import format_bytes
from embedps.console.tables import make_table
from embedps.errors import printable
from embedps.storage.file_io import read_bytes

STATISTICS_NAME = "statistics.json"
LEAST_OBSERVED_SECS = 60.0
"""A shorter time says little of the growth."""
TABLE_HEADINGS = (
    "table",
    "rows/h",
    "memory/h",
    "admitted",
    "refused",
    "evicted",
    "lookups",
    "ids/step",
)
SERVER_HEADINGS = ("server", "rows", "tables", "resident", "lookups/s", "load")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStatistics:
    """Statistics of a run, as text.

    Attributes:
      step: steps done by then.
      tables: cells by table, under TABLE_HEADINGS.
      servers: cells by parameter server, under SERVER_HEADINGS.
      forecasts: limits that are reached at the present growth, as (what, hours).
    """

    step: int
    tables: Sequence[Sequence[str]]
    servers: Sequence[Sequence[str]]
    forecasts: Sequence[tuple[str, float]]

    def forecast_lines(self) -> list[str]:
        """Says when limits are reached, the first one first."""
        return [
            f"{what}: {f'{hours:,.1f} hours' if hours else 'reached'}"
            for what, hours in sorted(self.forecasts, key=lambda each: each[1])
        ]


def read_run_statistics(folder: Path, *, has_ended: bool = False) -> RunStatistics | None:
    """Reads a model directory's statistics.json; None where there is none that is whole.

    Args:
      folder: the model directory.
      has_ended: whether the run is over, so that nothing grows towards a limit.
    """
    try:
        found = json.loads(read_bytes(folder / STATISTICS_NAME))
        return RunStatistics(
            step=int(found["step"]),
            tables=[
                _table_cells(name, table, is_short=found["observed_secs"] < LEAST_OBSERVED_SECS)
                for name, table in found["tables"].items()
            ],
            servers=[_server_cells(i, server) for i, server in enumerate(found["servers"])],
            forecasts=[
                (f"{each['subject']}, {each['limit']} {int(each['size']):,}", float(each["hours"]))
                for each in found["forecasts"]
                if each["hours"] is not None and not has_ended
            ],
        )
    except (
        OSError,
        ValueError,
        ArithmeticError,
        LookupError,
        RecursionError,
        TypeError,
        AttributeError,
    ):
        return None


def print_run_statistics(
    statistics: RunStatistics, console: Console, *, details: bool = True
) -> None:
    """Prints what the run saw: its forecasts, and with `details` a line per table and server."""
    for title, headings, rows in (
        (f"while it trained, until step {statistics.step:,}", TABLE_HEADINGS, statistics.tables),
        ("parameter servers", SERVER_HEADINGS, statistics.servers),
    ):
        if not details:
            continue
        table = make_table(title, *headings)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in statistics.forecast_lines():
        console.print(Text(printable(f"at the present growth: {line}")))


def _table_cells(name: str, table: Mapping[str, Any], *, is_short: bool) -> list[str]:
    rows, memory = table["rows_per_hour"], table["bytes_per_hour"]
    if is_short:
        rows = memory = None
    elif rows is not None and memory is not None and rows >= 0:
        memory = max(memory, 0)  # spare memory that was given back says nothing of the growth
    return [
        name,
        _known("{:,.0f}", rows),
        "?" if memory is None else _signed_bytes(memory),
        f"{table['admitted']:,}",
        f"{table['refused']:,}",
        f"{sum(table['evicted'].values()):,}",
        f"{table['lookups']:,}",
        f"{table['ids_per_step']:,.1f}",
    ]


def _server_cells(number: int, server: Mapping[str, Any]) -> list[str]:
    return [
        str(number),
        f"{server['rows']:,}",
        format_bytes(server["memory_bytes"]),
        format_bytes(server["resident_bytes"]),
        _known("{:,.0f}", server["lookups_per_sec"]),
        f"{server['load']:.2f}x",
    ]


def _known(form: str, value: float | None) -> str:
    return "?" if value is None else form.format(value)


def _signed_bytes(value: float) -> str:
    return ("-" if value < 0 else "") + format_bytes(round(abs(value)))

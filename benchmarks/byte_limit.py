"""Measures what a server's memory is under a byte limit: `python -m benchmarks.byte_limit`.

Each case is a process of its own, with malloc as a parameter server has it. It has one table of a
limited number of bytes, or two tables under one limit of the server, and a stream of steps; each
step looks ids up, and updates their rows. After every few steps it writes a delta to a file. A
thread reads the process' anonymous memory every few milliseconds. Before, an equal stream runs
through as many small tables of the same process. Its peak is TensorFlow's own, with the buffers of
steps and of files. The peak of the limited tables is compared with it.

Streams:

- new: every id is new;
- zipf: ids by Zipf's law with exponent 1.05; what is frequent drifts;
- alternating: two sets of ids that both fill the table, in turn;
- sweeps: half of the rows go by hand between saves, and others come;
- rare saves: every id is new, and a delta comes after each has been displaced several times;
- counters: the table admits an id by its second example. Each step has as many new ids as ids of
  the step before last, which it admits;
- counters zipf: the same table, and ids by Zipf's law;
- counters first: the same table, which sees new ids until counters would fill the limit, and then
  the stream of counters;
- evicted rows: every id is new, and rows that go are written to files, a file per save;
- evicted rarely: the same with rare saves.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import embedps  # noqa: F401  before TensorFlow: it has it start quietly

# isort: split
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from benchmarks import report
from embedps import kernels
from embedps.console import command_line
from embedps.errors import EmbedpsError
from embedps.server import keep_freed_memory
from embedps.splitmix import mix
from embedps.tables import Initializer, MinCount, SizeLimit, TableSpec, new_store, ops
from embedps.tables.byte_limits import ServerLimit
from embedps.tables.eviction import EvictionPolicy

STREAMS = ("new", "zipf", "alternating", "sweeps", "rare_saves")
COUNTING = ("counters", "counters_zipf", "counters_first")
KEEPING = ("evicted_rows", "evicted_rarely")
ALL_STREAMS = (*STREAMS, *COUNTING, *KEEPING)
_BATCH_IDS = 16384
_SAMPLE_SECS = 0.004
_SMALL_ROWS = 50_000
_SMALL_BYTES = 8 << 20  # of a small table that counts, whose counters max_rows does not limit
_SMALL_STEPS = 100
_COUNTER_BYTES = 16  # of an id without a row, at least

Ids = npt.NDArray[np.int64]


@functools.cache
def gradients(dim: int) -> npt.NDArray[np.float32]:
    """Gives a step's gradients. They are not memory of a table, so all tables share them."""
    return np.full((_BATCH_IDS, dim), 0.1, np.float32)


def ones(num_ids: int) -> npt.NDArray[np.int32]:
    """Gives the examples of a step that show each id."""
    return np.ones(num_ids, np.int32)


class EvictingTable:
    """A store of one table with policies of eviction."""

    def __init__(
        self,
        name: str,
        policies: Sequence[EvictionPolicy],
        dim: int,
        *,
        max_server_bytes: int = 0,
        counts: bool = False,
        evicted: Path | None = None,
    ) -> None:
        """Makes an empty store.

        Args:
          name: of the table.
          policies: of eviction.
          dim: of its rows.
          max_server_bytes: the limit of all tables of the process; 0 is no limit.
          counts: whether an id gets a row by its second example.
          evicted: a folder for the files of evicted rows.
        """
        self._dim = dim
        self._counts = counts
        self._evicted = evicted
        self._name = name
        self._cut = -1
        self._step = 0
        self._gradients = gradients(dim)
        table = TableSpec(
            name=name,
            dim=dim,
            initializer=Initializer.uniform(0.25),
            admission=MinCount(count=2) if counts else None,
            eviction=tuple(policies),
        )
        limit = ServerLimit(max_bytes=max_server_bytes) if max_server_bytes else None
        self.store = ops.row_store(
            container="byte-limit",
            shared_name=name,
            group=name,
            **new_store.attributes([table], server_limit=limit),
            server_memory="server-memory",
            keeps_evicted=evicted is not None,
        )
        self._next_evicted_file()

    def step(self, ids: Ids) -> None:
        """Looks ids up and updates their rows."""
        splits = np.asarray([0, len(ids)], np.int32)
        if self._counts:
            shown = (self.store, ids, splits, ones(len(ids)))
            step = np.int64(self._step)
            _, absent = ops.lookup_shown(*shown, dim=self._dim, step=step)
            ops.admit(*shown, absent, step=step)
        else:
            kernels.load().embedps_lookup(self.store, ids, splits, dim=self._dim, insert=True)
        kernels.load().embedps_update(
            self.store,
            ids,
            splits,
            self._gradients[: len(ids)],
            np.float32(0.1),
            np.int64(self._step),
            np.bool_(True),
        )
        self._step += 1

    def evict_older_half(self, steps: int) -> None:
        """Removes the rows of all but the last steps."""
        kernels.load().embedps_evict(self.store, self._step - steps, 2**31, table=0)

    def save(self, kind: str, folder: Path) -> None:
        """Writes and forgets a file of rows."""
        path = folder / "shard-0-of-1.arrow"
        made = kernels.load().embedps_write_rows(self.store, str(path), self._cut, 0.0, kind=kind)
        self._cut = int(made.info.numpy()[0])
        path.unlink()
        (folder / "admission-0-of-1.arrow").unlink(missing_ok=True)
        self._next_evicted_file()

    def _next_evicted_file(self) -> None:
        if self._evicted is not None:
            shutil.rmtree(self._evicted / self._name, ignore_errors=True)
            path = self._evicted / self._name / f"save-{self._cut + 1}" / "shard-0-of-1.parquet"
            kernels.load().embedps_next_evicted_file(self.store, str(path))

    def counts(self) -> dict[str, int]:
        """Counts rows, bytes as the store knows them, and rows that the limit displaced."""
        kernels.load().embedps_hold_sweeps(self.store, held=True)  # else rows go between the counts
        stats = kernels.load().embedps_stats(self.store)
        displaced = kernels.load().embedps_eviction_stats(self.store).numpy()[0]
        kernels.load().embedps_hold_sweeps(self.store, held=False)
        return {
            "rows": int(stats.rows.numpy()[0]),
            "counted_bytes": int(stats.counters.numpy()[0]),
            "evicted": int(displaced.sum()),
        }


class PeakMemory(threading.Thread):
    """Finds the most anonymous memory of the process."""

    def __init__(self) -> None:
        super().__init__(name="peak-memory")
        self.bytes = 0
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(_SAMPLE_SECS):
            self.bytes = max(self.bytes, report.anonymous_bytes())

    def end(self) -> int:
        """Stops the thread and returns the peak."""
        self._end.set()
        self.join()
        return max(self.bytes, report.anonymous_bytes())


def ids_of(numbers: Ids) -> Ids:
    """Maps distinct numbers to distinct 64-bit ids."""
    return mix(numbers.astype(np.uint64)).view(np.int64)


def batches(stream: str, capacity: int, first_steps: int = 0) -> Iterator[Ids]:
    """Yields the distinct ids of each step, for ever.

    Args:
      stream: one of ALL_STREAMS.
      capacity: about what the table holds.
      first_steps: of "counters_first", before it goes on as "counters".
    """
    rng = np.random.default_rng(3)
    step, half = 0, _BATCH_IDS // 2
    while True:
        first = step * _BATCH_IDS
        numbers = np.arange(first, first + _BATCH_IDS, dtype=np.int64)
        if stream in ("zipf", "counters_zipf"):
            ranks = rng.zipf(1.05, size=2 * _BATCH_IDS) % (8 * capacity)
            numbers = (ranks + np.where(ranks < capacity, first // 8, 0)).astype(np.int64)
        elif stream == "alternating":
            turn = first // capacity % 2
            numbers = turn * 2 * capacity + numbers % capacity
        elif stream == "counters" or (stream == "counters_first" and step >= first_steps):
            again = np.arange(half * (step - 2), half * (step - 1), dtype=np.int64)
            numbers = np.concatenate([np.arange(half * step, half * (step + 1)), again])
            numbers += 1 << 40  # apart from those that come once
        yield np.unique(ids_of(numbers))[:_BATCH_IDS]
        step += 1


def run_case(
    stream: str, max_bytes: int, dim: int, turnovers: int, num_tables: int
) -> dict[str, Any]:
    """Runs a stream in this process; returns its peak. Several tables share a server's limit."""
    keep_freed_memory()
    capacity = max_bytes // (16 + 4 * dim + 4 + 24)
    steps = turnovers * capacity // _BATCH_IDS
    is_rare = stream in ("rare_saves", "evicted_rarely")
    filling = max_bytes // _COUNTER_BYTES // _BATCH_IDS if stream == "counters_first" else 0
    per_save = max(1, (3 if is_rare else 1) * capacity // _BATCH_IDS)
    if not is_rare and stream != "sweeps":
        per_save = max(1, per_save // 3)

    def play(tables: Sequence[EvictingTable], first: int, steps: int, folder: Path) -> None:
        for table in tables:
            table.save("base", folder)
        for step, ids in zip(range(steps), batches(stream, capacity, first), strict=False):
            tables[step % len(tables)].step(ids)
            if step % per_save == per_save - 1:
                for table in tables:
                    if stream == "sweeps":
                        table.evict_older_half(per_save // 2)
                    table.save("delta", folder)

    with tempfile.TemporaryDirectory(prefix="embedps-byte-limit-") as name:
        counts = stream in COUNTING
        small_limit = SizeLimit(max_rows=_SMALL_ROWS, max_bytes=_SMALL_BYTES if counts else 0)
        small = [
            EvictingTable(f"small{i}", [small_limit], dim, counts=counts) for i in range(num_tables)
        ]
        peak = PeakMemory()
        peak.start()
        play(small, _SMALL_STEPS // 2, _SMALL_STEPS, Path(name))
        own = peak.end()
        peak = PeakMemory()
        peak.start()
        of_server = max_bytes if num_tables > 1 else 0
        tables = [
            EvictingTable(
                f"table{i}",
                [] if of_server else [SizeLimit(max_bytes=max_bytes)],
                dim,
                max_server_bytes=of_server,
                counts=counts,
                evicted=Path(name, "evicted") if stream in KEEPING else None,
            )
            for i in range(num_tables)
        ]
        play(tables, filling, filling + steps, Path(name))
        found = [table.counts() for table in tables]
        for table in tables:
            table.save("base", Path(name))
    added = peak.end() - own
    return {
        "stream": stream,
        "dim": dim,
        "max_bytes": max_bytes,
        "peak_bytes": added,
        "ratio": round(added / max_bytes, 4),
        "own_bytes": own,
        "tables": num_tables,
        **{name: sum(counts[name] for counts in found) for name in found[0]},
    }


def in_a_process(
    stream: str, max_bytes: int, dim: int, turnovers: int, num_tables: int
) -> dict[str, Any]:
    """Runs a case in a process of its own."""
    arguments = [f"--case={stream}", f"--max-bytes={max_bytes}", f"--dims={dim}"]
    arguments += [f"--tables={num_tables}"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.byte_limit", *arguments, f"--turnovers={turnovers}"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise EmbedpsError(f"the process of {stream} at {max_bytes} bytes failed: see above")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gives all cases in the order of a whole run; new ones replace old ones of the same case."""

    def place(case: dict[str, Any]) -> tuple[int, int, int, int]:
        stream = ALL_STREAMS.index(case["stream"])
        return case["tables"], case["max_bytes"], case["dim"], stream

    cases = {place(case): case for case in (*old, *new)}
    return [cases[key] for key in sorted(cases)]


def show(cases: list[dict[str, Any]]) -> None:
    """Prints the table."""
    table = Table(title="peak of resident memory above TensorFlow's own, over max_bytes")
    for column in ("stream", "tables", "dim", "max_bytes", "peak / max_bytes", "rows", "evicted"):
        table.add_column(column)
    for case in cases:
        numbers = (case["ratio"], case["rows"], case["evicted"])
        table.add_row(
            case["stream"],
            str(case["tables"]),
            str(case["dim"]),
            f"{case['max_bytes']:,}",
            *(f"{n:,}" for n in numbers),
        )
    Console().print(table)


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.byte_limit", description=__doc__)
    parser.add_argument("--max-bytes", type=_numbers, default=(32 << 20, 128 << 20, 512 << 20))
    parser.add_argument("--dims", type=_numbers, default=(16, 64))
    parser.add_argument(
        "--tables",
        type=_numbers,
        default=(1, 2),
        help="1: a limit of the table; more: a limit of the server that they share (default: 1,2)",
    )
    parser.add_argument(
        "--turnovers", type=int, default=4, help="ids of a stream over what fits (default: 4)"
    )
    parser.add_argument(
        "--streams", type=_names, default=ALL_STREAMS, help="comma-separated (default: all)"
    )
    parser.add_argument("--case", choices=ALL_STREAMS, help="run one stream in this process")
    parser.add_argument(
        "--add", action="store_true", help="keep what the output file has of other cases"
    )
    output = report.RESULTS / "byte_limit.json"
    parser.add_argument("--output", type=report.output_file, default=output)
    options = parser.parse_args(arguments)
    run: Callable[..., dict[str, Any]] = run_case if options.case else in_a_process
    cases = [
        run(stream, max_bytes, dim, options.turnovers, num_tables)
        for num_tables in options.tables
        for max_bytes in options.max_bytes
        for dim in options.dims
        for stream in ([options.case] if options.case else options.streams)
    ]
    if options.case:
        print(json.dumps(cases[0]))
        return 0
    show(cases)
    if options.add:
        cases = merged(json.loads(options.output.read_text())["results"]["cases"], cases)
    report.write(
        options.output,
        {
            "benchmark": "byte_limit",
            "command": "python -m benchmarks.byte_limit",
            "environment": report.environment(),
            "config": {"turnovers": options.turnovers, "batch_ids": _BATCH_IDS},
            "results": {"worst_ratio": max(case["ratio"] for case in cases), "cases": cases},
        },
    )
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

"""Runs `embedps checkpoint inspect|stats|verify|export|compact|diff|evict|rollback DIR`.

Exit code 0: done, no problem found. 1: a checkpoint is damaged or absent. 2: the command is wrong.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.lease import LeaseRenewer
from embedps.checkpoint.tools.compact import compact
from embedps.checkpoint.tools.diff import CHANGES, diff
from embedps.checkpoint.tools.evict import Selection, evict
from embedps.checkpoint.tools.inspect import format_bytes, inspect
from embedps.checkpoint.tools.replay import stream_table
from embedps.checkpoint.tools.rollback import ASIDE_NAME, rollback
from embedps.checkpoint.tools.run_statistics import print_run_statistics, read_run_statistics
from embedps.checkpoint.tools.stats import print_statistics, read_statistics
from embedps.checkpoint.tools.stats_page import make_page
from embedps.checkpoint.tools.verify import verify
from embedps.console.command_line import Parser, run, sigterm_interrupts, text
from embedps.console.lines import say
from embedps.console.tables import make_console
from embedps.errors import CheckpointError, UsageError
from embedps.storage import file_io


def main(arguments: Sequence[str], prog: str = "python -m embedps.checkpoint") -> int:
    """Runs one command; returns its exit code."""
    args = _parser(prog).parse_args(arguments)
    directory = CheckpointDirectory(args.directory)
    if not directory.path.is_dir():
        raise UsageError(f"there is no directory {str(directory.path)!r}")
    with sigterm_interrupts():
        return _COMMANDS[args.command](directory, args)


def _parser(prog: str) -> Parser:
    parser = Parser(prog=prog, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    summaries = {
        "inspect": "show a manifest's chain, tables and leases",
        "stats": "tell rows, updates, hottest ids, norms and load of each table and shard",
        "verify": "read every file and compare it with the manifests",
        "export": "replay base and deltas, and write one table as a Parquet file",
        "compact": "merge base and deltas into a new base, also during training",
        "diff": "count the rows that differ between two manifests",
        "evict": "remove rows of a table for which all that is given holds, while no run trains",
        "rollback": "make an older manifest the newest again, while no run trains",
    }
    for name, summary in summaries.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("directory", metavar="DIR", help="a path, or an s3:// or gs:// URL")
        if name in ("inspect", "stats", "verify", "export"):
            command.add_argument("--number", type=int, help="a manifest's number; default: newest")
        if name == "stats":
            command.add_argument(
                "--html", type=text, metavar="FILE", help="also write a page with plots"
            )
            command.add_argument(
                "--details",
                action="store_true",
                help="also show norms, shards, growth, evictions and the parameter servers",
            )
        if name == "verify":
            command.add_argument("--all", action="store_true", help="verify every manifest")
        if name == "export":
            command.add_argument("--table", required=True, metavar="NAME")
            command.add_argument("--output", required=True, type=text, metavar="FILE.parquet")
        if name == "evict":
            command.add_argument("--table", required=True, metavar="NAME")
            command.add_argument("--before-step", type=int, help="last updated before this step")
            command.add_argument("--max-frequency", type=int, help="with fewer updates than this")
            command.add_argument("--below-norm", type=float, help="of a smaller L2 norm than this")
            command.add_argument(
                "--evicted-rows",
                type=text,
                metavar="EVICTED",
                help="a directory that gets the rows, as that of a run",
            )
        if name == "rollback":
            command.add_argument(
                "--to", required=True, type=int, metavar="N", help="the older manifest's number"
            )
        if name == "diff":
            command.add_argument("before", type=int, metavar="A", help="a manifest's number")
            command.add_argument("after", type=int, metavar="B", help="another manifest's number")
            command.add_argument("--table", metavar="NAME", help="compare only this table")
            command.add_argument(
                "--output",
                type=text,
                metavar="FILE.parquet",
                help="write the rows that differ; needs --table",
            )
    return parser


@contextlib.contextmanager
def _leased(directory: CheckpointDirectory, number: int | None, command: str) -> Iterator[Manifest]:
    """Reads a manifest, by default the newest, and keeps its files while the block reads them."""
    with LeaseRenewer(directory, holder=command, is_needed=False) as lease:
        if number is not None:
            directory.read(number)  # which says what there is
            lease.hold(number)
            yield directory.read(number)
        elif manifest := lease.take_latest():
            yield manifest
        else:
            raise directory.holds_none()


def _inspect(directory: CheckpointDirectory, args: argparse.Namespace) -> int:
    manifest = directory.latest() if args.number is None else directory.read(args.number)
    if manifest is None:
        raise directory.holds_none()
    inspect(directory, manifest, make_console())
    return 0


def _stats(directory: CheckpointDirectory, args: argparse.Namespace) -> int:
    with _leased(directory, args.number, "stats") as manifest:
        statistics = read_statistics(directory, manifest)
    console = make_console()
    print_statistics(statistics, console, details=args.details)
    of_run = (
        read_run_statistics(directory.path, has_ended=manifest.final)
        if args.number is None
        else None
    )
    if of_run is not None:
        print_run_statistics(of_run, console, details=args.details)
    if not args.details:
        say("--details shows more columns, and what the run last saw of its tables and servers")
    if args.html is not None:
        page = make_page(directory.path.name, statistics, of_run)
        file_io.write_bytes(Path(args.html), page.encode())
        say(f"wrote {args.html}")
    return 0


def _verify(directory: CheckpointDirectory, args: argparse.Namespace) -> int:
    numbers = directory.numbers()
    if not numbers:
        raise directory.holds_none()
    if args.number is not None:
        if args.all:
            raise UsageError("--number and --all must not be given together")
        if args.number not in numbers:
            directory.read(args.number)  # which says what there is
        numbers = [args.number]
    elif not args.all:
        numbers = numbers[-1:]
    found = verify(directory, numbers)
    for problem in found.problems:
        say(str(problem))
    if found.collected:
        gone = ", ".join(map(str, found.collected))
        say(f"{directory.path}: removed meanwhile, as its run keeps fewer: manifests {gone}")
    if not found.manifests:
        raise CheckpointError(f"{directory.path}: nothing could be verified: verify again")
    outcome = f"{len(found.problems)} problems" if found.problems else "all as written"
    say(f"{found.manifests} manifests, {found.files} files, {format_bytes(found.bytes)}: {outcome}")
    return 1 if found.problems else 0


def _export(directory: CheckpointDirectory, args: argparse.Namespace) -> int:
    with _leased(directory, args.number, "export") as manifest:
        groups = {table["name"]: table["group"] for table in manifest.tables}
        if args.table not in groups:
            raise UsageError(f"--table must be one of {sorted(groups)} but is {args.table!r}")
        saved = (file for save in manifest.chain for file in save.files)
        files = [file for file in saved if file.group == groups[args.table]]
        directory.check_content(manifest, files)
        schema, batches = stream_table(directory, manifest, args.table)
        num_rows = _write_parquet(Path(args.output), schema, batches)
    say(
        f"{args.output}: {num_rows:,} rows of {args.table} "
        f"from manifest {manifest.number}, step {manifest.step:,}"
    )
    return 0


def _compact(directory: CheckpointDirectory, args: argparse.Namespace) -> int:
    made = compact(directory)
    if made is None:
        say(
            f"{directory.path}: nothing to merge: the chain is one base, or a new base was "
            "committed in the meantime"
        )
        return 0
    say(
        f"{directory.path}: manifest {made.manifest.number} with base-{made.base.number}: "
        f"{made.base.rows:,} rows, {format_bytes(made.read_bytes)} made "
        f"{format_bytes(made.base.bytes)}"
    )
    return 0


def _diff(directory: CheckpointDirectory, args: argparse.Namespace) -> int:
    with (
        _leased(directory, args.before, "diff") as before,
        _leased(directory, args.after, "diff") as after,
    ):
        return _diff_of(directory, before, after, args)


def _diff_of(
    directory: CheckpointDirectory, before: Manifest, after: Manifest, args: argparse.Namespace
) -> int:
    names = sorted({table["name"] for m in (before, after) for table in m.tables})
    if args.table is not None and args.table not in names:
        raise UsageError(f"--table must be one of {names} but is {args.table!r}")
    if args.output is not None and args.table is None:
        raise UsageError("--output needs --table: tables have different columns")
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    changes = _counted(diff(directory, before, after), args.table, counts)
    if args.output is None:
        collections.deque(changes, maxlen=0)
    else:
        first = next(changes, None)
        if first is not None:
            _write_parquet(Path(args.output), first.schema, itertools.chain([first], changes))
    for name in names if args.table is None else [args.table]:
        totals = (f"{counts[name, change]:,} {change}" for change in CHANGES)
        say(f"{name}: {', '.join(totals)}")
    return 0


def _evict(directory: CheckpointDirectory, args: argparse.Namespace) -> int:
    selection = Selection(
        before_step=args.before_step,
        max_frequency=args.max_frequency,
        below_norm=args.below_norm,
    )
    made = evict(directory, args.table, selection, evicted_rows=args.evicted_rows)
    if made.manifest is None:
        say(f"{directory.path}: no row of {args.table} is to go: {made.kept:,} rows stay")
        return 0
    say(
        f"{directory.path}: manifest {made.manifest.number} with {made.manifest.chain[-1].kind}-"
        f"{made.manifest.save_number}: {made.removed:,} rows of {args.table} removed, "
        f"{made.kept:,} stay"
    )
    return 0


def _rollback(directory: CheckpointDirectory, args: argparse.Namespace) -> int:
    made = rollback(directory, args.to)
    aside = f"; {made.evaluations} later evaluations are in {ASIDE_NAME}" * bool(made.evaluations)
    say(
        f"{directory.path}: manifest {made.manifest.number} is manifest {args.to} again: the next "
        f"run goes on from step {made.manifest.step:,}{aside}"
    )
    return 0


def _counted(
    batches: Iterable[pa.RecordBatch],
    table: str | None,
    counts: collections.Counter[tuple[str, str]],
) -> Iterator[pa.RecordBatch]:
    """Yields the batches, filtered to a table if given, and counts rows by table and change."""
    for batch in batches:
        if table is not None:
            batch = batch.filter(pc.equal(batch["table"].cast(pa.string()), table))
        for code, name in enumerate(batch["table"].dictionary.to_pylist()):
            of_table = batch.filter(pc.equal(batch["table"].indices, code))
            for change in pc.value_counts(of_table["change"].cast(pa.string())).to_pylist():
                counts[name, change["values"]] += change["counts"]
        if batch.num_rows:
            yield batch


_COMMANDS = {
    "inspect": _inspect,
    "stats": _stats,
    "verify": _verify,
    "export": _export,
    "compact": _compact,
    "diff": _diff,
    "evict": _evict,
    "rollback": _rollback,
}


def _write_parquet(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes batches to a Parquet file and returns the number of rows."""
    num_rows = 0
    with (
        file_io.write_atomically(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))

"""Runs `embedps checkpoint inspect|stats|verify|compact|diff|evict|rollback|tag DIR`.

Exit code 0: done, no problem found. 1: a checkpoint is damaged or absent. 2: the command is wrong.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from embedps import config_fields
from embedps.checkpoint import directory_command
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.directory_command import leased
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.refs import (
    check_name,
    manifest_option,
    move_ref,
    number_of,
    read_ref,
    read_refs,
)
from embedps.checkpoint.tools.compact import compact
from embedps.checkpoint.tools.diff import CHANGES, diff
from embedps.checkpoint.tools.evict import Selection, evict
from embedps.checkpoint.tools.inspect import describe_move, format_bytes, inspect
from embedps.checkpoint.tools.rollback import ASIDE_NAME, rollback
from embedps.checkpoint.tools.row_output import write_parquet
from embedps.checkpoint.tools.run_statistics import print_run_statistics, read_run_statistics
from embedps.checkpoint.tools.run_texts import RunTexts, texts_option
from embedps.checkpoint.tools.stats import print_statistics, read_statistics, shown_ids
from embedps.checkpoint.tools.stats_page import make_page
from embedps.checkpoint.tools.verify import verify
from embedps.config_fields import option, section
from embedps.console import command_line
from embedps.console.lines import say
from embedps.console.tables import make_console
from embedps.errors import CheckpointError, UsageError
from embedps.storage import file_io


def main(arguments: Sequence[str], prog: str = "python -m embedps.checkpoint") -> int:
    """Runs one command; returns its exit code."""
    return directory_command.run(_COMMANDS, arguments, prog, __doc__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompactConfig:
    """Merges base and deltas into a new base, also during training."""

    directory: str = option(
        dataclasses.MISSING, "a path, or an s3:// or gs:// URL", metavar="DIR", positional=True
    )

    def __post_init__(self) -> None:
        config_fields.check(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectConfig(CompactConfig):
    """Shows a manifest's chain, tables and leases."""

    number: int | str | None = manifest_option(
        None, "a manifest's number, or a ref; default: newest"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatsConfig(InspectConfig):
    """Tells rows, updates, hottest ids, norms and load of each table and shard."""

    html: Path | None = option(None, "also write a page with plots")
    details: bool = option(
        False, "also show norms, shards, growth, evictions and the parameter servers"
    )
    texts: tuple[str, ...] = texts_option()


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyConfig(InspectConfig):
    """Reads every file and compares it with the manifests."""

    all: bool = option(False, "verify every manifest")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.number is not None and self.all:
            raise UsageError("--number and --all must not be given together")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiffConfig(CompactConfig):
    """Counts the rows that differ between two manifests."""

    before: int | str = manifest_option(
        dataclasses.MISSING, "a manifest's number, or a ref", metavar="A", positional=True
    )
    after: int | str = manifest_option(
        dataclasses.MISSING, "another manifest's", metavar="B", positional=True
    )
    table: str | None = option(None, "compare only this table", metavar="NAME")
    output: Path | None = option(
        None, "write the rows that differ; needs --table", metavar="FILE.parquet"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output is not None and self.table is None:
            raise UsageError("--output needs --table: tables have different columns")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvictConfig(CompactConfig):
    """Removes rows of a table for which all that is given holds, while no run trains."""

    table: str = option(dataclasses.MISSING, "the table", metavar="NAME")
    selection: Selection = section(Selection)
    evicted_rows: str | None = option(
        None, "a directory that gets the rows, as that of a run", metavar="EVICTED"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RollbackConfig(CompactConfig):
    """Makes an older manifest the newest again, while no run trains."""

    to: int | str = manifest_option(dataclasses.MISSING, "the older manifest's number, or a ref")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagConfig(CompactConfig):
    """Makes or moves a ref, a name of a manifest that stays; lists refs, or the moves of one."""

    name: str | None = option(
        None, "the ref; without it, refs are listed", metavar="REF", positional=True
    )
    to: int | str | None = manifest_option(
        None,
        "the manifest's number, or a ref that names it; without it, the ref's moves are listed",
        positional=True,
    )
    remove: bool = option(False, "remove the ref")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None:
            check_name(self.name)
        if self.remove and (self.name is None or self.to is not None):
            raise UsageError("--remove needs a ref's name, and no manifest")


def _inspect(directory: CheckpointDirectory, config: InspectConfig) -> int:
    if config.number is None:
        manifest = directory.latest()
    else:
        manifest = directory.read(number_of(directory, config.number))
    if manifest is None:
        raise directory.holds_none()
    inspect(directory, manifest, make_console())
    return 0


def _stats(directory: CheckpointDirectory, config: StatsConfig) -> int:
    with leased(directory, config.number, "stats") as manifest:
        statistics = read_statistics(directory, manifest)
        texts = RunTexts([manifest], config.texts).of(shown_ids(statistics))
    console = make_console()
    print_statistics(statistics, console, details=config.details, texts=texts)
    of_run = (
        read_run_statistics(directory.path, has_ended=manifest.final)
        if config.number is None
        else None
    )
    if of_run is not None:
        print_run_statistics(of_run, console, details=config.details)
    if not config.details:
        say("--details shows more columns, and what the run last saw of its tables and servers")
    if config.html is not None:
        page = make_page(directory.path.name, statistics, of_run, texts)
        file_io.write_bytes(config.html, page.encode())
        say(f"wrote {config.html}")
    return 0


def _verify(directory: CheckpointDirectory, config: VerifyConfig) -> int:
    numbers = directory.numbers()
    if not numbers:
        raise directory.holds_none()
    if config.number is not None:
        number = number_of(directory, config.number)
        if number not in numbers:
            directory.read(number)  # which says what there is
        numbers = [number]
    elif not config.all:
        named = {ref.number for ref in read_refs(directory)}
        numbers = [n for n in numbers if n in named or n == numbers[-1]]
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


def _compact(directory: CheckpointDirectory, config: CompactConfig) -> int:
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


def _diff(directory: CheckpointDirectory, config: DiffConfig) -> int:
    with (
        leased(directory, config.before, "diff") as before,
        leased(directory, config.after, "diff") as after,
    ):
        return _diff_of(directory, before, after, config)


def _diff_of(
    directory: CheckpointDirectory, before: Manifest, after: Manifest, config: DiffConfig
) -> int:
    names = sorted({table["name"] for m in (before, after) for table in m.tables})
    if config.table is not None and config.table not in names:
        raise UsageError(f"--table must be one of {names} but is {config.table!r}")
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    changes = _counted(diff(directory, before, after), config.table, counts)
    if config.output is None:
        collections.deque(changes, maxlen=0)
    else:
        first = next(changes, None)
        if first is not None:
            write_parquet(config.output, first.schema, itertools.chain([first], changes))
    for name in names if config.table is None else [config.table]:
        totals = (f"{counts[name, change]:,} {change}" for change in CHANGES)
        say(f"{name}: {', '.join(totals)}")
    return 0


def _evict(directory: CheckpointDirectory, config: EvictConfig) -> int:
    made = evict(directory, config.table, config.selection, evicted_rows=config.evicted_rows)
    if made.manifest is None:
        say(f"{directory.path}: no row of {config.table} is to go: {made.kept:,} rows stay")
        return 0
    say(
        f"{directory.path}: manifest {made.manifest.number} with {made.manifest.chain[-1].kind}-"
        f"{made.manifest.save_number}: {made.removed:,} rows of {config.table} removed, "
        f"{made.kept:,} stay"
    )
    return 0


def _rollback(directory: CheckpointDirectory, config: RollbackConfig) -> int:
    number = number_of(directory, config.to)
    made = rollback(directory, number)
    aside = f"; {made.evaluations} later evaluations are in {ASIDE_NAME}" * bool(made.evaluations)
    say(
        f"{directory.path}: manifest {made.manifest.number} is manifest {number} again: the "
        f"next run goes on from step {made.manifest.step:,}{aside}"
    )
    return 0


def _tag(directory: CheckpointDirectory, config: TagConfig) -> int:
    if config.name is None:
        refs = read_refs(directory)
        for ref in refs:
            say(f"{ref.name}: {describe_move(ref.moves[-1])}")
        if not refs:
            say(f"{directory.path} has no refs")
    elif config.to is None and not config.remove:
        ref = read_ref(directory, config.name)
        for move in reversed(ref.moves):
            say(f"{ref.name}: {describe_move(move)}")
    else:
        ref = move_ref(directory, config.name, config.to)
        say(f"{directory.path}: {ref.name}: {describe_move(ref.moves[-1])}")
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


_COMMANDS: directory_command.Commands = {
    "inspect": (InspectConfig, _inspect),
    "stats": (StatsConfig, _stats),
    "verify": (VerifyConfig, _verify),
    "compact": (CompactConfig, _compact),
    "diff": (DiffConfig, _diff),
    "evict": (EvictConfig, _evict),
    "rollback": (RollbackConfig, _rollback),
    "tag": (TagConfig, _tag),
}


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

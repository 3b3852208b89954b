"""Shows what a checkpoint directory holds."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.lease import Lease, read_clock, read_leases
from embedps.checkpoint.refs import Move, read_refs
from embedps.console.tables import make_table
from embedps.errors import printable

_CHAIN_COLUMNS = ("save", "since", "step", "files", "rows", "removed", "bytes", "age", "leased by")


def inspect(directory: CheckpointDirectory, manifest: Manifest, console: Console) -> None:
    """Prints a manifest: its chain, its tables, its dense state and its leases."""
    now = time.time()
    numbers = directory.numbers()
    final = ", final" if manifest.final else ""
    console.print(
        f"[bold]{escape(printable(str(directory.path)))}[/]: manifest {manifest.number} of "
        f"{len(numbers)} ({numbers[0]}-{numbers[-1]}), step {manifest.step:,}, "
        f"{format_secs(now - manifest.wall_time)} old, {manifest.num_shards} shards{final}"
    )
    leases = read_leases(directory)
    lease_now = now
    with contextlib.suppress(OSError):  # of a directory that only others may write
        lease_now = read_clock(directory) if leases else now
    holders = _holders(directory, leases, lease_now)
    console.print(_chain(directory, manifest, holders, now))
    console.print(_tables(manifest))
    for ref in read_refs(directory):
        console.print(escape(f"ref {ref.name}: {describe_move(ref.moves[-1])}"))
    if leases:
        console.print(_leases(leases, lease_now))
    else:
        console.print("no leases")


def format_bytes(num_bytes: float) -> str:
    """Formats bytes in units of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def format_secs(secs: float) -> str:
    """Formats seconds in the largest unit of which there are at least 2."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if secs >= 2 * size:
            return f"{secs / size:.0f} {unit}"
    return f"{max(secs, 0):.0f} s"


def describe_move(move: Move) -> str:
    """Says what a ref names since a move, what before, and who moved it when."""
    before = "new" if move.before is None else f"before {move.before}"
    after = "removed" if move.after is None else f"manifest {move.after}"
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(move.at))
    return printable(f"{after} ({before}), by {move.by} at {when}")


def _chain(
    directory: CheckpointDirectory, manifest: Manifest, holders: dict[str, list[str]], now: float
) -> Table:
    columns = [*_CHAIN_COLUMNS]
    counts = any(save.admission for save in manifest.chain)
    if counts:
        columns.insert(columns.index("removed") + 1, "counters")
    table = make_table("chain", *columns)
    for save in manifest.chain:
        name = f"{save.kind}-{save.number}"
        table.add_row(
            name,
            "" if save.since is None else str(save.since),
            f"{save.step:,}",
            str(len(save.files) + len(save.admission)),
            f"{save.rows:,}",
            f"{save.removed:,}",
            *([f"{sum(file.rows for file in save.admission):,}"] if counts else []),
            format_bytes(save.bytes),
            _age(directory.path / name, now),
            ", ".join(holders.get(name, [])),
        )
    others = [*([] if manifest.dense is None else [manifest.dense]), *manifest.vectors]
    for file in others:
        size = format_bytes(file.bytes)
        holder = ", ".join(holders.get(file.directory, []))
        age = _age(directory.path / file.directory, now)
        name, rows = file.directory, f"{file.rows:,}"
        blank = [""] * (2 if counts else 1)
        step = "" if file in manifest.vectors else f"{manifest.step:,}"
        table.add_row(name, "", step, "1", rows, *blank, size, age, holder)
    total = manifest.chain_bytes + sum(file.bytes for file in others)
    table.add_section()
    blank = [""] * (3 if counts else 2)
    table.add_row("all", "", "", str(len(manifest.files)), *blank, format_bytes(total), "", "")
    return table


def _holders(
    directory: CheckpointDirectory, leases: list[Lease], now: float
) -> dict[str, list[str]]:
    """Maps each save's directory to the holders of leases on manifests that name it."""
    holders: dict[str, list[str]] = {}
    for lease in leases:
        if lease.is_live(now) and directory.manifest_path(lease.number).exists():
            for name in {file.directory for file in directory.read(lease.number).files}:
                holders.setdefault(name, []).append(lease.holder)
    return holders


def _age(path: Path, now: float) -> str:
    """Returns the time since a save was written; empty for an object store, which has no times."""
    written = path.stat().st_mtime if path.is_dir() else 0
    return format_secs(now - written) if written else ""


def _tables(manifest: Manifest) -> Table:
    table = make_table("tables", "table", "group", "dim", "optimizer")
    for each in manifest.tables:
        name = each["optimizer"]["kind"]
        table.add_row(*(str(x) for x in (each["name"], each["group"], each["dim"], name)))
    return table


def _leases(leases: list[Lease], now: float) -> Table:
    table = make_table("leases", "lease", "manifest", "holder", "pid", "host", "renewed", "expires")
    for lease in leases:
        left = lease.expires_at - now
        table.add_row(
            lease.name,
            str(lease.number),
            lease.holder,
            str(lease.pid),
            lease.host,
            f"{format_secs(now - lease.acquired_at)} ago",
            f"in {format_secs(left)}" if left > 0 else "expired",
        )
    return table

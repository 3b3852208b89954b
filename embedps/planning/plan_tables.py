"""Shows a plan as text."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from embedps.checkpoint.tools.inspect import format_bytes
from embedps.console.tables import make_table
from embedps.planning.plan import Plan, epoch_text
from embedps.planning.plan_config import PlanConfig


def print_plan(plan: Plan, asked: PlanConfig, console: Console) -> None:
    """Prints a plan's tables, servers and workers."""
    console.print(_tables(plan))
    console.print(_servers(plan))
    if plan.max_server_bytes:
        console.print(_limit(plan))
    if plan.tiers:
        console.print(_tier(plan))
    memory = f"{asked.server_memory_gib:g} GiB"
    if plan.needed_ps is None:
        console.print(f"no planned number of servers of {memory} holds the tables")
    else:
        console.print(f"parameter servers of {memory} that hold the tables: {plan.needed_ps}")
    if plan.modes:
        console.print(_modes(plan))
    if plan.local:
        console.print(_local(plan))
        console.print(_workers(plan, asked))


def _tables(plan: Plan) -> Table:
    title = f"tables after the {plan.examples:,} examples of the training split"
    table = make_table(title, "table", "dim", "rows", "bytes", "bytes/row", "ids/step")
    for each in plan.tables:
        table.add_row(
            each.name,
            str(each.dim),
            f"{'' if each.exact else '~'}{each.rows:,}",
            format_bytes(each.table_bytes),
            f"{each.table_bytes / max(each.rows, 1):,.0f}",
            f"{each.ids_per_step:,.0f}",
        )
    rows, size = (sum(getattr(t, name) for t in plan.tables) for name in ("rows", "table_bytes"))
    ids = sum(t.ids_per_step for t in plan.tables)
    table.add_section()
    per_row = f"{size / max(rows, 1):,.0f}"
    table.add_row("all", "", f"{rows:,}", format_bytes(size), per_row, f"{ids:,.0f}")
    return table


def _servers(plan: Plan) -> Table:
    table = make_table(
        "predictions: the fullest parameter server (times the mean), bytes per step of a worker",
        "servers",
        "rows",
        "tables",
        "its process",
        "bytes in",
        "bytes out",
    )
    for each in plan.servers:
        table.add_row(
            str(each.num_ps),
            _fullest(each.rows, "{:,.0f}"),
            f"{format_bytes(max(each.table_bytes))}{_skew(each.table_bytes)}",
            format_bytes(max(each.memory_bytes)) if each.memory_bytes else "",
            _fullest(each.bytes_in, "{:,.0f}"),
            _fullest(each.bytes_out, "{:,.0f}"),
        )
    return table


def _limit(plan: Plan) -> str:
    first = plan.servers[0]
    held, displaced = sum(first.rows), sum(first.displaced)
    text = f"max_server_bytes {format_bytes(plan.max_server_bytes)}: "
    if not displaced:
        return text + "no row is displaced"
    text += f"{first.num_ps} server holds {held:,} rows and displaces {displaced:,}; "
    fits = [each.num_ps for each in plan.servers if not sum(each.displaced)]
    if not fits:
        return text + "no planned number of servers holds all"
    return text + f"{fits[0]} servers hold all"


def _tier(plan: Plan) -> str:
    first = plan.tiers[0]
    text = f"max_memory_bytes {format_bytes(plan.max_memory_bytes)}: "
    if first.hits == 1:
        return text + f"{first.num_ps} server has all rows in memory"
    text += f"{first.num_ps} server has {first.rows:,} rows in memory, {first.hits:.0%} of a step's"
    for each in plan.tiers[1:]:
        if each.hits == 1:
            text += f"; {each.num_ps} have all"
            break
        text += f"; {each.num_ps} have {each.hits:.0%}"
    if plan.miss:
        text += f"; a row on disk takes {1e6 * plan.miss.secs:.1f} us"
    return text


def _fullest(values: list[int], form: str) -> str:
    return form.format(max(values)) + _skew(values)


def _skew(values: list[int]) -> str:
    if len(values) == 1:
        return ""
    return f" ({max(values) * len(values) / max(sum(values), 1):.2f}x)"


def _modes(plan: Plan) -> Table:
    table = make_table(
        "modes of the run's cluster; calls and bytes at a server per step of a worker",
        "--sync",
        "rows' update",
        "network's",
        "calls",
        "bytes in",
        "bytes out",
        "examples/s here",
    )
    for each in plan.modes:
        how = "measured" if each.is_measured else "predicted"
        table.add_row(
            each.sync,
            f"{each.row_examples:,.0f} examples",
            f"{each.network_examples:,.0f}",
            f"{each.calls:.1f}",
            f"{each.bytes_in:,}",
            f"{each.bytes_out:,}",
            f"{each.examples_per_sec:,.0f} {how}" if each.examples_per_sec else "",
        )
    return table


def _local(plan: Plan) -> Table:
    table = make_table(
        "measured on this machine, --sync none", "processes", "examples/s", "an epoch"
    )
    for name, rate in plan.local.items():
        table.add_row(name, f"{rate:,.0f}", epoch_text(plan.examples / rate))
    for name, rate in plan.local_with_disk.items():
        predicted = f"{rate:,.0f} predicted"
        table.add_row(f"{name}, rows on disk", predicted, epoch_text(plan.examples / rate))
    return table


def _workers(plan: Plan, asked: PlanConfig) -> Table:
    cores = asked.cores or plan.measured[-1].cores
    table = make_table(
        f"predictions: each task on a machine like this one, {cores} cores, "
        f"{asked.link_gbits:g} Gbit/s, --sync {plan.sync}",
        "workers",
        "servers",
        "examples/s",
        "an epoch",
        "limited by",
        "link in",
        "link out",
    )
    by_number = {of.num_ps: of for of in plan.servers}
    for each in plan.workers:
        of = by_number[each.num_ps]
        steps = each.examples_per_sec / plan.examples_per_step
        table.add_row(
            str(each.num_workers),
            str(each.num_ps),
            f"{each.examples_per_sec:,.0f}",
            epoch_text(each.epoch_secs),
            each.limit,
            *(f"{max(b) * steps * 8e-9:.2f} Gbit/s" for b in (of.bytes_in, of.bytes_out)),
        )
    return table

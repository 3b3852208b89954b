"""Attacks a server and readers of files: `python -m benchmarks.hostile`.

Each attack on a server has a server of its own, a process of `embedps serve` on a small model.
Others ask it for one record at a time at a fixed rate (benchmarks.open_loop), and open a new
connection four times per second, while for some seconds nothing else happens, then a harmless
request comes again and again, and then the attack. Each attack by a file is read in a process of
its own, and then a harmless file is, of the same size. CPU seconds are of one request or file;
peak bytes are of resident memory above that before; a request of others without an answer takes for
ever. All processes have limits, so that an attack that succeeds ends no other process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.hostile import file_attacks, run, server_attacks, tables, under_attack
from benchmarks.hostile.processes import Limits
from embedps.console import command_line
from embedps.console.command_line import number

ATTACKS = (*server_attacks.ATTACKS, *file_attacks.ATTACKS)
_DESCRIPTORS = 1024  # the usual limit of a process


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    options = _parser().parse_args(arguments)
    environment = report.environment()
    limits = Limits(
        address_bytes=options.max_gib << 30, descriptors=_DESCRIPTORS, secs=options.limit_secs
    )
    config = {"rate": options.rate, "secs": options.secs, **dataclasses.asdict(limits)}
    results = json.loads(options.output.read_text())["results"] if options.add else {}
    command = [] if options.add else arguments  # all runs together did what one would
    with tempfile.TemporaryDirectory(prefix="embedps-hostile-") as name:
        folder, columns = Path(name), run.columns(options.tables)
        model_dir = run.train(folder, columns)
        for attack in options.only:
            found = _measure(attack, options, limits, folder, model_dir, columns)
            commit = environment["commit"]
            results[attack] = {**found, "ratios": tables.ratios(found), "commit": commit}
            results = {each: results[each] for each in ATTACKS if each in results}
            report.write(  # keeps the results if a later attack fails
                options.output,
                report.envelope(
                    "hostile", command, environment=environment, config=config, results=results
                ),
            )
    show(results)
    return 0


def _measure(
    name: str,
    options: argparse.Namespace,
    limits: Limits,
    folder: Path,
    model_dir: Path,
    columns: Sequence[str],
) -> dict[str, Any]:
    if name in file_attacks.ATTACKS:
        of_files = file_attacks.QUICK if options.quick else file_attacks.Sizes()
        return file_attacks.measure(name, model_dir, limits, of_files, folder)
    sizes = server_attacks.QUICK if options.quick else server_attacks.Sizes()
    attack = server_attacks.ATTACKS[name](columns, sizes)
    return under_attack.run(
        model_dir, columns, attack, limits, rate=options.rate, secs=options.secs
    )


def show(results: dict[str, Any]) -> None:
    """Prints the table."""
    found = tables.rows(results)
    table = Table(title="attacks, and how they compare with harmless requests and files")
    for head in tables.HEADS:
        table.add_column(head)
    for row in found:
        table.add_row(*row)
    Console(width=None if Console().is_terminal else 180).print(table)


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = sorted(set(names) - set(ATTACKS))
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no attack is named {unknown[0]}: there are {', '.join(ATTACKS)}"
        )
    return names


def _parser() -> command_line.Parser:
    parser = command_line.Parser(prog="python -m benchmarks.hostile", description=__doc__)
    count = number(int, least=1, most=10**6)
    secs = number(float, above=0, most=3600)
    parser.add_argument(
        "--only",
        type=_names,
        default=list(ATTACKS),
        metavar="ATTACK,...",
        help=f"some of {', '.join(ATTACKS)}",
    )
    for flag, kind, default, text in (
        ("--tables", count, 26, "of the model, each of a column of ids"),
        ("--rate", secs, 50.0, "others' requests per second"),
        ("--secs", secs, 6.0, "of each phase of a server"),
        ("--limit-secs", secs, 60.0, "that an answer or a file may take"),
        ("--max-gib", count, 12, "address space that a process may take"),
    ):
        parser.add_argument(
            flag, type=kind, default=default, metavar="X", help=f"{text} (default: {default})"
        )
    parser.add_argument("--quick", action="store_true", help="small attacks, to try the program")
    parser.add_argument(
        "--add", action="store_true", help="keep what the output file has of other attacks"
    )
    parser.add_argument(
        "--output", type=report.output_file, default=report.RESULTS / "hostile.json", metavar="FILE"
    )
    return parser


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

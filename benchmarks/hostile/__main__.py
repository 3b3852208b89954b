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

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.hostile import file_attacks, server_attacks, tables, under_attack
from benchmarks.hostile import run as small_run
from benchmarks.hostile.processes import Limits
from benchmarks.layout import Part, Table
from embedps.config_fields import option

ATTACKS = (*server_attacks.ATTACKS, *file_attacks.ATTACKS)
_DESCRIPTORS = 1024  # the usual limit of a process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The attacks, the server and the others who ask it."""

    only: tuple[str, ...] = option(ATTACKS, "attacks", some_of=ATTACKS)
    tables: int = option(26, "of the model, each of a column of ids", least=1)
    rate: float = option(50.0, "others' requests per second", above=0)
    secs: float = option(6.0, "of each phase of a server", above=0, most=3600)
    limit_secs: float = option(60.0, "that an answer or a file may take", above=0, most=3600)
    max_gib: int = option(12, "address space that a process may take", least=1)
    quick: bool = option(False, "small attacks, to try the program")
    add: bool = option(False, "keep what the result has of other attacks")


def measure(config: Config, run: Run) -> Content:
    """Makes each attack beside its harmless twin."""
    limits = Limits(
        address_bytes=config.max_gib << 30, descriptors=_DESCRIPTORS, secs=config.limit_secs
    )
    content: Content = {"config": dataclasses.asdict(limits)}
    results = run.earlier()["results"] if config.add else {}
    with tempfile.TemporaryDirectory(prefix="embedps-hostile-") as name:
        folder, columns = Path(name), small_run.columns(config.tables)
        model_dir = small_run.train(folder, columns)
        for attack in config.only:
            found = _measure(attack, config, limits, folder, model_dir, columns)
            commit = run.environment["commit"]
            results[attack] = {**found, "ratios": tables.ratios(found), "commit": commit}
            content["results"] = {each: results[each] for each in ATTACKS if each in results}
            run.save(content)  # keeps the results if a later attack fails
    return content


def _measure(
    name: str,
    config: Config,
    limits: Limits,
    folder: Path,
    model_dir: Path,
    columns: Sequence[str],
) -> dict[str, Any]:
    if name in file_attacks.ATTACKS:
        of_files = file_attacks.QUICK if config.quick else file_attacks.Sizes()
        return file_attacks.measure(name, model_dir, limits, of_files, folder)
    sizes = server_attacks.QUICK if config.quick else server_attacks.Sizes()
    attack = server_attacks.ATTACKS[name](columns, sizes)
    return under_attack.run(model_dir, columns, attack, limits, rate=config.rate, secs=config.secs)


def layout(content: Content) -> list[Part]:
    """Lays each attack out beside its harmless twin."""
    commits = sorted({case["commit"] for case in content["results"].values()})
    table = Table(heads=tables.HEADS, rows=tables.rows(content["results"]))
    return [table, f"Measured at {', '.join(commits)}."]


BENCHMARK = Benchmark(name="hostile", about=__doc__, config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)

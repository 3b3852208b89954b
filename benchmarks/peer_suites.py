"""The suites of `python -m benchmarks run`: which systems are compared, on what, in which cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from benchmarks.comparison import FLOOR, OURS, Case, Comparison, Configuration, System
from benchmarks.environments import PEERS
from benchmarks.peers.protocol import CHECKPOINT_ROWS, Variant
from benchmarks.workload import Workload

Suite = Literal["lookup", "train", "checkpoint", "input"]
SUITES: tuple[Suite, ...] = ("lookup", "train", "checkpoint", "input")

# The kinds of one family are compared with each other, as each system has its own kind of Adagrad.
_FAMILIES = {"SGD": ("sgd",), "Adagrad of any kind": ("rowwise_adagrad", "adagrad")}


_FLOOR = System(title=FLOOR, peer=FLOOR)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """The part of a suite to run."""

    peers: tuple[str, ...]
    precisions: tuple[str, ...]
    batch_sizes: tuple[int, ...]


def make_comparisons(suite: Suite, workload: Workload, choice: Choice) -> list[Comparison]:
    """Makes the comparisons of a suite on a workload."""
    if suite == "train":
        return [_embedded("train", workload, choice), *_clusters(workload, choice)]
    if suite == "lookup":
        return [_embedded("lookup", workload, choice)]
    return [_files(suite, workload, choice)]


def _one_process_systems(choice: Choice) -> list[System]:
    peers = [name for name in choice.peers if name != "tf-ps"]
    return [
        System(title="embedps", peer=OURS),
        *(System(title=PEERS[name].title, peer=name) for name in peers),
    ]


def _embedded(task: str, workload: Workload, choice: Choice) -> Comparison:
    systems = _one_process_systems(choice)
    titles = [system.title for system in systems]
    # Each of two concurrent units misses a step of the other's updates, so this system is shown
    # beside ours but is not counted as ours.
    two = System(title="embedps, two units at once", peer=OURS, settings={"num_workers": 2})
    if task == "train":
        systems += [two, _FLOOR]

    def cases(kinds: Sequence[str], precision: str, batch: int) -> tuple[Case, ...]:
        found = _cases(task, titles, kinds, precision=precision, batch=batch)
        if task == "train":
            found += _cases(task, [two.title], kinds[:1], precision=precision, batch=batch)
            found += (_floor(precision, batch),)
        return found

    precisions = choice.precisions if task == "train" else ("float32",)
    what = {"train": "training", "lookup": "lookup and update alone"}[task]
    return Comparison(
        title=f"{workload.name}, {what}, one process",
        workload=workload,
        systems=tuple(systems),
        configurations=tuple(
            Configuration(
                group=family,
                name=f"{precision} {batch}",
                cases=cases(kinds, precision, batch),
            )
            for family, kinds in _FAMILIES.items()
            for precision in precisions
            for batch in choice.batch_sizes
        ),
    )


def _files(suite: Suite, workload: Workload, choice: Choice) -> Comparison:
    systems = _one_process_systems(choice)
    titles = [system.title for system in systems]
    kinds = {"checkpoint": ("save", "delta", "restore"), "input": ("in order", "shuffled")}[suite]
    sizes = (CHECKPOINT_ROWS,) if suite == "checkpoint" else choice.batch_sizes
    title, count = {
        "checkpoint": (f"{CHECKPOINT_ROWS:,} rows of dim {workload.dim} with Adagrad", "rows"),
        "input": ("reading batches", "examples"),
    }[suite]
    return Comparison(
        title=title,
        workload=workload,
        systems=tuple(systems),
        configurations=tuple(
            Configuration(
                group=f"{count} per second",
                name=kind if suite == "checkpoint" else f"{kind} {size}",
                cases=_cases(suite, titles, [kind], precision="float32", batch=size),
            )
            for kind in kinds
            for size in sizes
        ),
    )


def _clusters(workload: Workload, choice: Choice) -> list[Comparison]:
    if "tf-ps" not in choice.peers:
        return []
    two = {"num_ps": 2, "num_workers": 2}
    stock = PEERS["tf-ps"].title
    systems = (
        System(title="embedps, 2 PS + 2 workers", peer=OURS, settings=two),
        System(
            title="embedps, 2 PS + 2 workers, overlap", peer=OURS, settings={**two, "overlap": 1}
        ),
        System(title="embedps", peer=OURS),
        System(title=f"{stock}, 2 + 2", peer="tf-ps", settings=two),
        System(title=f"{stock}, 1 + 1", peer="tf-ps", settings={"num_ps": 1, "num_workers": 1}),
    )

    def case(system: System, precision: str, batch: int) -> Case:
        kind = "rowwise_adagrad" if system.peer == OURS else "adagrad"
        return Case(
            system=system.title,
            variant=Variant(task="train", kind=kind, precision=precision, batch=batch),
        )

    configurations = tuple(
        Configuration(
            group="Adagrad",
            name=f"{precision} {batch}",
            cases=(
                *(case(system, precision, batch) for system in systems),
                _floor(precision, batch),
            ),
        )
        for precision in choice.precisions
        for batch in choice.batch_sizes
    )
    return [
        Comparison(
            title=f"{workload.name}, training, parameter servers and workers",
            workload=workload,
            systems=(*systems, _FLOOR),
            configurations=configurations,
        )
    ]


def _floor(precision: str, batch: int) -> Case:
    variant = Variant(task="train", kind="of any", precision=precision, batch=batch)
    return Case(system=FLOOR, variant=variant)


def _cases(
    task: str, titles: Sequence[str], kinds: Sequence[str], *, precision: str, batch: int
) -> tuple[Case, ...]:
    return tuple(
        Case(
            system=title,
            variant=Variant(task=task, kind=kind, precision=precision, batch=batch),
        )
        for title in titles
        for kind in kinds
    )

"""What each suite races: who, on what, in which variants."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from benchmarks.environments import PEERS
from benchmarks.peers.protocol import CHECKPOINT_ROWS, Variant
from benchmarks.races import OURS, Entrant, Lane, Meeting, Race
from benchmarks.workload import Workload

Suite = Literal["lookup", "train", "checkpoint", "input"]
SUITES: tuple[Suite, ...] = ("lookup", "train", "checkpoint", "input")

# The kinds of one family are compared with each other: what Adagrad is, each system has its own.
_FAMILIES = {"SGD": ("sgd",), "Adagrad of any kind": ("rowwise_adagrad", "adagrad")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What of a suite is run."""

    peers: tuple[str, ...]
    precisions: tuple[str, ...]
    batch_sizes: tuple[int, ...]


def meetings(suite: Suite, workload: Workload, choice: Choice) -> list[Meeting]:
    """The suite's races on a workload."""
    if suite == "train":
        return [_embedded("train", workload, choice), *_clusters(workload, choice)]
    if suite == "lookup":
        return [_embedded("lookup", workload, choice)]
    return [_files(suite, workload, choice)]


def _embedded(task: str, workload: Workload, choice: Choice) -> Meeting:
    entrants = [Entrant(title="embedps", peer=OURS)]
    entrants += [
        Entrant(title=PEERS[name].title, peer=name) for name in choice.peers if name != "tf-ps"
    ]
    titles = [e.title for e in entrants]
    # A step of either lacks a step of the other's: told beside ours, and not counted as it.
    two = Entrant(title="embedps, two units at once", peer=OURS, settings={"num_workers": 2})
    if task == "train":
        entrants.append(two)

    def lanes(kinds: Sequence[str], precision: str, batch: int) -> tuple[Lane, ...]:
        found = _all_lanes(task, titles, kinds, precision=precision, batch=batch)
        if task == "train":
            found += _all_lanes(task, [two.title], kinds[:1], precision=precision, batch=batch)
        return found

    precisions = choice.precisions if task == "train" else ("float32",)
    what = {"train": "training", "lookup": "lookup and update alone"}[task]
    return Meeting(
        title=f"{workload.name}, {what}, one process",
        workload=workload,
        entrants=tuple(entrants),
        races=tuple(
            Race(
                group=family,
                name=f"{precision} {batch}",
                lanes=lanes(kinds, precision, batch),
            )
            for family, kinds in _FAMILIES.items()
            for precision in precisions
            for batch in choice.batch_sizes
        ),
    )


def _files(suite: Suite, workload: Workload, choice: Choice) -> Meeting:
    entrants = [Entrant(title="embedps", peer=OURS)]
    entrants += [
        Entrant(title=PEERS[name].title, peer=name) for name in choice.peers if name != "tf-ps"
    ]
    titles = [e.title for e in entrants]
    kinds = {"checkpoint": ("save", "delta", "restore"), "input": ("in order", "shuffled")}[suite]
    sizes = (CHECKPOINT_ROWS,) if suite == "checkpoint" else choice.batch_sizes
    title, count = {
        "checkpoint": (f"{CHECKPOINT_ROWS:,} rows of dim {workload.dim} with Adagrad", "rows"),
        "input": ("reading batches", "examples"),
    }[suite]
    races = [
        Race(
            group=f"{count} a second",
            name=kind if suite == "checkpoint" else f"{kind} {size}",
            lanes=_all_lanes(suite, titles, [kind], precision="float32", batch=size),
        )
        for kind in kinds
        for size in sizes
    ]
    return Meeting(title=title, workload=workload, entrants=tuple(entrants), races=tuple(races))


def _clusters(workload: Workload, choice: Choice) -> list[Meeting]:
    if "tf-ps" not in choice.peers:
        return []
    two = {"num_ps": 2, "num_workers": 2}
    stock = PEERS["tf-ps"].title
    entrants = (
        Entrant(title="embedps, 2 PS + 2 workers", peer=OURS, settings=two),
        Entrant(
            title="embedps, 2 PS + 2 workers, overlap", peer=OURS, settings={**two, "overlap": 1}
        ),
        Entrant(title="embedps", peer=OURS),
        Entrant(title=f"{stock}, 2 + 2", peer="tf-ps", settings=two),
        Entrant(title=f"{stock}, 1 + 1", peer="tf-ps", settings={"num_ps": 1, "num_workers": 1}),
    )
    races = []
    for precision in choice.precisions:
        for batch in choice.batch_sizes:
            lanes = [
                Lane(
                    entrant=e.title,
                    variant=Variant(
                        task="train",
                        kind="rowwise_adagrad" if e.peer == OURS else "adagrad",
                        precision=precision,
                        batch=batch,
                    ),
                )
                for e in entrants
            ]
            races.append(Race(group="Adagrad", name=f"{precision} {batch}", lanes=tuple(lanes)))
    title = f"{workload.name}, training, parameter servers and workers"
    return [Meeting(title=title, workload=workload, entrants=entrants, races=tuple(races))]


def _all_lanes(
    task: str, titles: Sequence[str], kinds: Sequence[str], *, precision: str, batch: int
) -> tuple[Lane, ...]:
    return tuple(
        Lane(
            entrant=title,
            variant=Variant(task=task, kind=kind, precision=precision, batch=batch),
        )
        for title in titles
        for kind in kinds
    )

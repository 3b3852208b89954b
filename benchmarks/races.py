"""Ours and the peers in turn, round after round, on the same examples."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import environments, report, workload
from benchmarks.contestants import Contestant, Measured
from benchmarks.environments import PEERS, PeerError
from benchmarks.peers.protocol import Variant

OURS = "embedps"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entrant:
    """Who takes part.

    Attributes:
      title: its name in tables.
      peer: one of PEERS, or OURS.
      settings: what its program is told, such as num_ps.
    """

    title: str
    peer: str
    settings: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lane:
    """An entrant's variant in a race."""

    entrant: str
    variant: Variant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Race:
    """Lanes that are measured in the same rounds.

    Attributes:
      group: races of one group have their tables in memory together, and are told in one table.
      name: its column there.
      lanes: the first is ours, which is compared with the others.
    """

    group: str
    name: str
    lanes: tuple[Lane, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Meeting:
    """Races among the same entrants, of which the first is ours; they stay started for all."""

    title: str
    workload: workload.Workload
    entrants: tuple[Entrant, ...]
    races: tuple[Race, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Rounds of each race, and seconds of a lane in each."""

    rounds: int
    secs: float


def hold(meeting: Meeting, batches: workload.Batches, timing: Timing) -> dict[str, Any]:
    """Starts the entrants and runs the races; the JSON's part of it."""
    began = time.monotonic()
    field = _Field()
    results: list[dict[str, Any]] = []
    with workload.files(meeting.workload, batches) as folder:
        try:
            for entrant in meeting.entrants:
                field.start(entrant, folder)
            for number, group in enumerate(dict.fromkeys(race.group for race in meeting.races)):
                races = [race for race in meeting.races if race.group == group]
                results += _run_group(races, number, field, timing)
        finally:
            field.close()
    return {
        "title": meeting.title,
        "workload": dataclasses.asdict(meeting.workload),
        "rows": len(batches.labels),
        "ours": meeting.entrants[0].title,
        "secs": round(time.monotonic() - began, 1),
        "versions": field.versions,
        "absent": field.absent,
        "races": results,
    }


class _Field:
    """The contestants that run, and why others do not."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[str, str]] = {}
        self.absent: dict[str, str] = {}
        self._running: dict[str, Contestant] = {}

    def start(self, entrant: Entrant, folder: Path) -> None:
        try:
            peer = PEERS.get(entrant.peer)
            contestant = Contestant(
                entrant.title,
                python=environments.python_of(peer) if peer else Path(sys.executable),
                module=peer.module if peer else "embedps_dlrm",
                folder=folder,
                settings=entrant.settings,
            )
        except PeerError as error:
            self._say(entrant.title, str(error))
        else:
            self._running[entrant.title] = contestant
            self.versions[entrant.title] = contestant.versions

    def prepare(self, lane: Lane, group: int) -> bool:
        """Whether it is ready; if not, it has been said why."""
        contestant = self._running.get(lane.entrant)
        if contestant is None:
            return False
        try:
            answer = contestant.prepare(lane.variant, group=group)
        except PeerError as error:
            self._drop(lane.entrant, str(error))
            return False
        if "unsupported" in answer:
            self._say(f"{lane.entrant}, {lane.variant.kind}", answer["unsupported"])
            return False
        return True

    def measure(self, lane: Lane, secs: float) -> Measured | None:
        """None where it has failed, now or before."""
        contestant = self._running.get(lane.entrant)
        if contestant is None:
            return None
        try:
            return contestant.measure(lane.variant, secs)
        except PeerError as error:
            self._drop(lane.entrant, str(error))
            return None

    def close(self) -> None:
        for contestant in self._running.values():
            contestant.close()

    def _drop(self, title: str, why: str) -> None:
        self._running.pop(title).close()
        self._say(title, why)

    def _say(self, title: str, why: str) -> None:
        if title not in self.absent:
            print(f"not measured: {title}: {why}", flush=True)
        self.absent[title] = why


def _run_group(
    races: Sequence[Race], number: int, field: _Field, timing: Timing
) -> list[dict[str, Any]]:
    ready = {(race, lane) for race, lane in _lanes(races) if field.prepare(lane, number)}
    measured: dict[tuple[Race, Lane], list[Measured]] = {key: [] for key in ready}
    for k in range(timing.rounds):
        for key in _order(_lanes(races), k):
            found = field.measure(key[1], timing.secs) if key in ready else None
            if found is not None:
                measured[key].append(found)
        print(f"{races[0].group}: round {k + 1} of {timing.rounds}", flush=True)
    results = []
    for race in races:
        lanes = [(lane, measured.get((race, lane), [])) for lane in race.lanes]
        whole = [(lane, found) for lane, found in lanes if len(found) == timing.rounds]
        ours = [m.rate for lane, found in whole for m in found if lane is race.lanes[0]]
        results.append(
            {
                "group": race.group,
                "race": race.name,
                "lanes": [_result(lane, found, ours) for lane, found in whole],
            }
        )
    return results


def _lanes(races: Iterable[Race]) -> list[tuple[Race, Lane]]:
    return [(race, lane) for race in races for lane in race.lanes]


def _order(lanes: list[tuple[Race, Lane]], round_: int) -> list[tuple[Race, Lane]]:
    """Another begins each round: the machine slows down and recovers within one, too."""
    first = round_ % len(lanes)
    return lanes[first:] + lanes[:first]


def _result(lane: Lane, found: Sequence[Measured], ours: Sequence[float]) -> dict[str, Any]:
    rates = [m.rate for m in found]
    ratios = [mine / theirs for mine, theirs in zip(ours, rates, strict=bool(ours))]
    return {
        "entrant": lane.entrant,
        **dataclasses.asdict(lane.variant),
        "rate": report.spread(rates),
        "ours_to_this": report.spread(ratios) if ratios else None,
        "rates": [round(rate) for rate in rates],
        "foreign_cores": max(m.foreign_cores for m in found),
        "more": {k: report.spread([m.more[k] for m in found]) for k in found[0].more},
    }

"""Compares embedps with its peers: runs them in turn, round after round, on the same examples."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import environments, report, workload
from benchmarks.environments import PEERS, PeerError
from benchmarks.peers.protocol import Variant
from benchmarks.system_process import Measured, SystemProcess

OURS = "embedps"
FLOOR = "floor"
"""What training cannot be faster than: `benchmarks.peers.floor`, a system of this title."""

_OWN_MODULES = {OURS: "embedps_dlrm", FLOOR: "floor"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """One system under test.

    Attributes:
      title: its name in tables.
      peer: one of PEERS, OURS or FLOOR.
      settings: the settings of its program, such as num_ps.
    """

    title: str
    peer: str
    settings: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A variant to measure on the system of a title."""

    system: str
    variant: Variant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration:
    """Cases that are measured in the same rounds.

    Attributes:
      group: configurations of one group have their tables in memory together, and share a table of
        results.
      name: its column in that table.
      cases: the first is ours; the others are compared with it.
    """

    group: str
    name: str
    cases: tuple[Case, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Configurations of the same systems, which run during the whole comparison; ours is first."""

    title: str
    workload: workload.Workload
    systems: tuple[System, ...]
    configurations: tuple[Configuration, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """The rounds of each configuration, and the seconds of a case per round."""

    rounds: int
    secs: float


def run_comparison(
    comparison: Comparison, batches: workload.Batches, timing: Timing
) -> dict[str, Any]:
    """Starts the systems and measures every case; returns the comparison's part of the JSON."""
    began = time.monotonic()
    running = _RunningSystems()
    results: list[dict[str, Any]] = []
    with workload.files(comparison.workload, batches) as folder:
        try:
            for system in comparison.systems:
                running.start(system, folder)
            groups = dict.fromkeys(each.group for each in comparison.configurations)
            for number, group in enumerate(groups):
                of_group = [each for each in comparison.configurations if each.group == group]
                results += _run_group(of_group, number, running, timing)
        finally:
            running.close()
    return {
        "title": comparison.title,
        "workload": dataclasses.asdict(comparison.workload),
        "rows": len(batches.labels),
        "ours": comparison.systems[0].title,
        "secs": round(time.monotonic() - began, 1),
        "versions": running.versions,
        "not_measured": running.not_measured,
        "configurations": results,
    }


class _RunningSystems:
    """The processes of the systems that run, and the reasons why others do not."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[str, str]] = {}
        self.not_measured: dict[str, str] = {}
        self._processes: dict[str, SystemProcess] = {}

    def start(self, system: System, folder: Path) -> None:
        try:
            peer = PEERS.get(system.peer)
            process = SystemProcess(
                system.title,
                python=environments.python_of(peer) if peer else Path(sys.executable),
                module=peer.module if peer else _OWN_MODULES[system.peer],
                folder=folder,
                settings=system.settings,
            )
        except PeerError as error:
            self._report(system.title, str(error))
        else:
            self._processes[system.title] = process
            self.versions[system.title] = process.versions

    def prepare(self, case: Case, group: int) -> bool:
        """Prepares a case; returns whether it is ready, and prints the reason if it is not."""
        process = self._processes.get(case.system)
        if process is None:
            return False
        try:
            answer = process.prepare(case.variant, group=group)
        except PeerError as error:
            self._stop(case.system, str(error))
            return False
        if "unsupported" in answer:
            self._report(f"{case.system}, {case.variant.kind}", answer["unsupported"])
            return False
        return True

    def measure(self, case: Case, secs: float) -> Measured | None:
        """Measures a case; returns None if its system has failed."""
        process = self._processes.get(case.system)
        if process is None:
            return None
        try:
            return process.measure(case.variant, secs)
        except PeerError as error:
            self._stop(case.system, str(error))
            return None

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def _stop(self, title: str, reason: str) -> None:
        self._processes.pop(title).close()
        self._report(title, reason)

    def _report(self, title: str, reason: str) -> None:
        if title not in self.not_measured:
            print(f"not measured: {title}: {reason}", flush=True)
        self.not_measured[title] = reason


_Key = tuple[Configuration, Case]


def _run_group(
    configurations: Sequence[Configuration], number: int, running: _RunningSystems, timing: Timing
) -> list[dict[str, Any]]:
    """Measures the cases of one group in turn, round after round."""
    keys = _cases(configurations)
    ready = {key for key in keys if running.prepare(key[1], number)}
    measured: dict[_Key, list[Measured]] = {key: [] for key in ready}
    for k in range(timing.rounds):
        for key in _order(keys, k):
            found = running.measure(key[1], timing.secs) if key in ready else None
            if found is not None:
                measured[key].append(found)
        print(f"{configurations[0].group}: round {k + 1} of {timing.rounds}", flush=True)
    results = []
    for configuration in configurations:
        cases = [(case, measured.get((configuration, case), [])) for case in configuration.cases]
        complete = [(case, found) for case, found in cases if len(found) == timing.rounds]
        first = configuration.cases[0]
        ours = [m.rate for case, found in complete for m in found if case is first]
        floor = [m.rate for case, found in complete for m in found if case.system == FLOOR]
        results.append(
            {
                "group": configuration.group,
                "configuration": configuration.name,
                "cases": [_result(case, found, ours, floor) for case, found in complete],
            }
        )
    return results


def _cases(configurations: Iterable[Configuration]) -> list[_Key]:
    return [
        (configuration, case) for configuration in configurations for case in configuration.cases
    ]


def _order(keys: list[_Key], round_: int) -> list[_Key]:
    """Rotates the order per round, because the machine slows down and recovers within a round."""
    first = round_ % len(keys)
    return keys[first:] + keys[:first]


def _result(
    case: Case, found: Sequence[Measured], ours: Sequence[float], floor: Sequence[float]
) -> dict[str, Any]:
    rates = [m.rate for m in found]
    of_floor = {} if case.system == FLOOR else {"of_floor": _ratios(rates, floor)}
    return {
        "system": case.system,
        **dataclasses.asdict(case.variant),
        "rate": report.spread(rates),
        "ours_to_this": _ratios(ours, rates),
        **{name: ratios for name, ratios in of_floor.items() if ratios is not None},
        "rates": [round(rate) for rate in rates],
        "foreign_cores": max(m.foreign_cores for m in found),
        "more": {k: report.spread([m.more[k] for m in found]) for k in found[0].more},
    }


def _ratios(rates: Sequence[float], others: Sequence[float]) -> dict[str, float] | None:
    """Compares rates within each round; None if one of the systems was not measured."""
    if not (rates and others):
        return None
    return report.spread([a / b for a, b in zip(rates, others, strict=True)])

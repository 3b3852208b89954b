"""Runs a measured program in its own process, and measures the load of other processes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.environments import PeerError
from benchmarks.peers.protocol import Variant

_ROOT = Path(__file__).parent.parent
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """One measurement.

    Attributes:
      rate: examples per second.
      foreign_cores: cores that other processes kept busy during the measurement.
      more: further numbers that the program reported.
    """

    rate: float
    foreign_cores: float
    more: dict[str, float]


class SystemProcess:
    """A running program of `benchmarks.peers` that waits for requests."""

    def __init__(
        self, title: str, *, python: Path, module: str, folder: Path, settings: Mapping[str, int]
    ) -> None:
        """Starts the program; an error quotes the last line of its log.

        Raises:
          PeerError: the program does not start.
        """
        self.title = title
        self._log = folder / f"{title.replace(' ', '-').replace('/', '-')}.log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment |= {"PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [
                    *(str(python), "-m", f"benchmarks.peers.{module}"),
                    *(str(folder), json.dumps(dict(settings))),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=_ROOT,
                text=True,
            )
        self.versions: dict[str, str] = self._answer()["versions"]

    def prepare(self, variant: Variant, *, group: int) -> dict[str, Any]:
        """Builds and warms up a variant; frees what other groups built.

        Returns:
          {"warm_up_secs": …} or {"unsupported": reason}.

        Raises:
          PeerError: the program failed.
        """
        return self._ask("prepare", variant, group=group)

    def measure(self, variant: Variant, secs: float) -> Measured:
        """Runs a prepared variant for about `secs` seconds.

        Raises:
          PeerError: the program failed.
        """
        began, busy, own = time.monotonic(), _busy_secs(), _tree_secs(self._process.pid)
        answer = self._ask("measure", variant, secs=secs)
        foreign = _busy_secs() - busy - (_tree_secs(self._process.pid) - own)
        wall = time.monotonic() - began  # includes untimed work, such as preparing a save
        examples, took = answer.pop("examples"), answer.pop("secs")
        return Measured(
            rate=examples / took, foreign_cores=round(max(0.0, foreign) / wall, 2), more=answer
        )

    def close(self) -> None:
        """Ends the process."""
        if self._process.poll() is None and self._process.stdin is not None:
            try:
                self._process.stdin.write(json.dumps({"do": "end"}) + "\n")
                self._process.stdin.close()
                self._process.wait(timeout=10)
            except (OSError, subprocess.TimeoutExpired):
                self._process.kill()
        self._process.wait()

    def _ask(self, command: str, variant: Variant, **more: Any) -> dict[str, Any]:
        if self._process.stdin is None:
            raise PeerError("was not started with a pipe")
        question = {"do": command, **dataclasses.asdict(variant), **more}
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failure(f"has ended: {error}") from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise self._failure(f"ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failure(answer["error"])
        return answer

    def _failure(self, text: str) -> PeerError:
        lines = self._log.read_text(errors="replace").splitlines()
        return PeerError(" ".join([text, *(lines[-1:] if "ended" in text else [])]))


def _busy_secs() -> float:
    """Returns the CPU seconds that all processes together have used."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS


def tree(root: int) -> dict[int, float]:
    """Gives the CPU seconds of a process and of each of its descendants, by PID."""
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue  # it has ended
        fields = stat[stat.rindex(")") + 2 :].split()
        children.setdefault(int(fields[1]), []).append(int(name))
        used[int(name)] = int(fields[11]) + int(fields[12])
    todo, found = [root], dict[int, float]()
    while todo:
        pid = todo.pop()
        found[pid] = used.get(pid, 0) / _TICKS
        todo += children.get(pid, [])
    return found


def _tree_secs(root: int) -> float:
    return sum(tree(root).values())

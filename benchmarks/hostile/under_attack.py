"""Measures a server under an attack, under its harmless twin, and without either."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import open_loop
from benchmarks.hostile import wire
from benchmarks.hostile.processes import Limits, peak_bytes, reset_peak, resident_bytes
from benchmarks.hostile.server_attacks import TOKEN, Act, Attack, Target, one_row
from benchmarks.served import Server

_PROBE_SECS = 0.25  # between two new connections
_PROBE_LIMIT_SECS = 5.0
_DIFFERENT = 50  # requests of others


class Probes(threading.Thread):
    """Asks REST for its health on new connections, as an orchestrator does."""

    def __init__(self, url: str) -> None:
        super().__init__(name="probes")
        self.asked = self.failed = 0
        self._url, self._ended = f"{url}/healthz", threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_PROBE_SECS):
            self.asked += 1
            try:
                with urllib.request.urlopen(self._url, timeout=_PROBE_LIMIT_SECS):
                    pass
            except OSError:
                self.failed += 1

    def end(self) -> None:
        """Stops the thread and waits for it."""
        self._ended.set()
        self.join()


class Attacked:
    """A server with other clients."""

    def __init__(
        self, server: Server, columns: Sequence[str], limits: Limits, *, rate: float, secs: float
    ) -> None:
        self._server, self._limits = server, limits
        self._rate, self._secs = rate, secs
        self._requests = [
            wire.predict_message(one_row(columns, seed=seed)) for seed in range(_DIFFERENT)
        ]
        self._idle_cores = 0.0  # that the others' requests keep busy

    def measure(self, attack: Attack) -> dict[str, Any]:
        """Measures nothing, the twin and the attack, one after the other."""
        found = {"quiet": self._phase(None)}
        self._idle_cores = found["quiet"]["cpu_secs"] / self._secs
        found["harmless"] = self._phase(attack.harmless)
        found["hostile"] = self._phase(attack.hostile)
        return found

    def _phase(self, act: Act | None) -> dict[str, Any]:
        pid = self._server.process.pid
        said: list[str] = []
        used: dict[str, float] = {}
        probes = Probes(self._server.rest)

        def beside() -> None:
            began, cpu, memory = time.monotonic(), self._cpu_secs(), resident_bytes(pid)
            with contextlib.suppress(OSError):
                reset_peak(pid)
            probes.start()
            until = began + self._secs
            if act is None:
                time.sleep(self._secs)
            while act is not None and time.monotonic() < until:
                said.append(act(self._target(until)))
                if self._server.process.poll() is not None:
                    break
            # Others' requests are also answered meanwhile: what they cost is not the attack's.
            others = self._idle_cores * (time.monotonic() - began)
            used["cpu_secs"] = max(0.0, self._cpu_secs() - cpu - others) / max(1, len(said))
            used["peak_bytes"] = max(0, peak_bytes(pid) - memory)

        load = open_loop.offer(
            self._server.grpc,
            self._requests,
            self._rate,
            self._secs,
            seed=1,
            token=TOKEN,
            beside=beside,
        )
        probes.end()
        return {
            "times": len(said),
            "said": said[-1] if said else "",
            "cpu_secs": round(used["cpu_secs"], 3),
            "peak_bytes": used["peak_bytes"],
            **latencies(load),
            "probes": probes.asked,
            "probes_failed": probes.failed,
            "ended_with": self._server.process.poll(),
        }

    def _target(self, until: float) -> Target:
        return Target(
            rest_port=int(self._server.rest.rsplit(":", 1)[1]),
            grpc_address=self._server.grpc,
            secs=self._limits.secs,
            until=until,
        )

    def _cpu_secs(self) -> float:
        try:
            return self._server.cpu_secs()
        except OSError:
            return 0.0


def latencies(load: open_loop.Load) -> dict[str, float | None]:
    """Summarizes the others' requests; one without an answer takes for ever, which is None."""
    ms = np.where(load.version < 0, np.inf, load.latency * 1e3)

    def mark(percent: float) -> float | None:
        found = float(np.percentile(ms, percent, method="higher"))
        return round(found, 2) if np.isfinite(found) else None

    return {
        "p50_ms": mark(50),
        "p99_ms": mark(99),
        "max_ms": mark(100),
        "failed": int(np.count_nonzero(load.version < 0)),
    }


def run(
    model_dir: Path,
    columns: Sequence[str],
    attack: Attack,
    limits: Limits,
    *,
    rate: float,
    secs: float,
) -> dict[str, Any]:
    """Starts a server and measures an attack on it.

    Args:
      model_dir: of the run to serve.
      attack: on the server.
      rate: of the others' requests, per second.
      secs: of each of the three phases; an attack that takes longer is waited for.
    """
    with tempfile.TemporaryDirectory() as name:
        token = Path(name, "token")
        token.write_text(f"{TOKEN}\n")
        arguments = [f"--model-dir={model_dir}", f"--name={wire.NAME}", f"--token-file={token}"]
        server = Server("embedps.serve", *arguments, prefix=limits.command())
        try:
            found = Attacked(server, columns, limits, rate=rate, secs=secs).measure(attack)
        finally:
            server.process.kill()
            server.process.wait()
    return {"what": attack.what, "sent_bytes": attack.sent_bytes, **found}

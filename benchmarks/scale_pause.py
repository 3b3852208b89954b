"""Measures `embedps scale --ps` while a run trains: `python -m benchmarks.scale_pause`.

A local run whose tables hold the given number of rows gets a third parameter server, and loses it
again, several times. summary.json has how long each change paused it. Its lines tell its speed
before each request, and from there until the pause, when the other cluster is made ready.
"""

from __future__ import annotations

import dataclasses
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, figures
from benchmarks.row_visits import write_dataset
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.config_fields import option
from embedps.errors import EmbedpsError
from embedps.run.summary import read_json
from embedps.scale import ScaleConfig, scale

_PROGRESS = re.compile(r"^units .*\) ([\d,]+) examples")
_CALM_SECS = 8.0


class _Client:
    """A run, and how many examples it had when."""

    def __init__(self, data: Path, model_dir: Path) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "embedps.train", "--model=benchmarks.row_visits"),
                *(f"--data={data}", f"--model-dir={model_dir}", "--num-ps=2", "--num-workers=2"),
                *("--epochs=100000", "--batch-size=2048", "--row-dim=16", "--eval=none"),
                *("--delta-secs=5", "--log-secs=0.2", "--unit-rows=8192"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._seen: list[tuple[float, int]] = []
        self._last_line = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._last_line = line
            if found := _PROGRESS.match(line):
                self._seen.append((time.time(), int(found[1].replace(",", ""))))

    def check(self) -> None:
        """Raises if it ended."""
        if self._process.poll() is not None:
            raise EmbedpsError(f"the run ended: {self._last_line}")

    def rate(self, begin: float, end: float) -> float:
        """Gives the examples per second between two moments."""
        within = [each for each in self._seen if begin <= each[0] <= end]
        (first_at, first), (last_at, last) = within[0], within[-1]
        return float((last - first) / (last_at - first_at))

    def end(self) -> None:
        """Has it save and end."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(120)

    def kill(self) -> None:
        """Ends it if it has not ended."""
        self._process.kill()
        self._process.wait()


def change_servers(*, num_rows: int, changes: int) -> dict[str, Any]:
    """Trains until a checkpoint has `num_rows`, then adds and removes a server in turn."""
    with tempfile.TemporaryDirectory() as folder:
        data, model_dir = Path(folder) / "data", Path(folder) / "model"
        write_dataset(data, train=[num_rows // 4] * 4, evaluation=[1000])
        client = _Client(data, model_dir)
        asked = []
        try:
            directory = CheckpointDirectory(model_dir)
            while (last := directory.latest()) is None or last.progress["examples"] < num_rows:
                time.sleep(0.5)
                client.check()
            for number in range(changes):
                time.sleep(_CALM_SECS)
                asked.append(time.time())
                scale(ScaleConfig(directory=str(model_dir), ps=2 if number % 2 else 3))
            client.end()
        finally:
            client.kill()
        summary = read_json(model_dir / "summary.json")
    found = []
    for at, record in zip(asked, summary["scalings"], strict=True):
        calm = client.rate(at - _CALM_SECS + 1, at)
        beside = client.rate(at, record["last_unit_at"] + 0.5)
        found.append({
            **{key: record[key] for key in ("pause_secs", "saved_secs", "restored_secs")},
            **{key: record[key] for key in ("loaded", "num_ps", "units_lost", "steps_lost")},
            "ready_secs": round(record["last_unit_at"] - at, 2),
            "calm_examples_per_sec": round(calm, 1),
            "speed_meanwhile": round(beside / calm, 3),
        })  # fmt: skip
    return {
        "rows": sum(summary["tables"].values()),
        "repeated": summary["units"]["repeated"],
        "changes": found,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The run and its changes."""

    rows: int = option(2_000_000, "of the tables", least=4)
    changes: int = option(10, "of the number of servers, to 3 and to 2 in turn", least=1)


def measure(config: Config, run: Run) -> Content:
    """Changes the servers of a run."""
    return {"results": change_servers(num_rows=config.rows, changes=config.changes)}


def layout(content: Content) -> list[Part]:
    """Lays out medians of the changes."""
    found = content["results"]
    changes = found["changes"]

    def median(key: str) -> float:
        return float(statistics.median(each[key] for each in changes))

    pauses = [each["pause_secs"] for each in changes]
    p95, most = np.quantile(pauses, [0.95, 1.0])
    rows = [
        ["from the last unit to the next one", f"{median('pause_secs'):.1f} s"],
        [f"p95, and most, of {len(changes)} changes", f"{p95:.1f} s; {most:.1f} s"],
        ["of it, to save", f"{median('saved_secs'):.1f} s"],
        ["of it, until the other servers have all", f"{median('restored_secs'):.1f} s"],
        ["records that they load then", f"{median('loaded'):,.0f}"],
        ["from the request to the pause", f"{median('ready_secs'):.1f} s"],
        ["speed meanwhile, by that before", f"{median('speed_meanwhile'):.2f}"],
        ["steps lost, units repeated", f"{sum(c['steps_lost'] for c in changes)}, "
         f"{found['repeated']}"],
    ]  # fmt: skip
    return [figures(f"`embedps scale --ps` while a run trains, {found['rows']:,} rows", rows)]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)

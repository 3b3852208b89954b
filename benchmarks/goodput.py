"""Tells how much training failures cost: `python -m benchmarks.goodput`.

Trains on a local cluster without failures, then with parameter servers killed at random, by restart
of the client and with --recover-in-place. The first run of each way fits the simulator
(benchmarks.goodput_model), which predicts how long the second takes. Then it tells what it predicts
for a large cluster of preemptible machines, also for ways that embedps does not have: a standby
that applies every step too, and logs of gradients at the workers that a restored server applies.

On this machine the processes share the cores, so a recovery takes from the others too.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chaos import pids_writing
from benchmarks.goodput_model import (
    Cluster,
    Failure,
    Outcome,
    Recovery,
    random_failures,
    simulate,
)
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table
from benchmarks.row_visits import write_dataset
from embedps.config_fields import option
from embedps.errors import EmbedpsError, UsageError
from embedps.planning.step_traffic import ServerStep, predict
from embedps.run.summary import read_json

WAYS: Mapping[str, tuple[str, ...]] = {"restart": ("--no-recover-in-place",), "in place": ()}
_INTERVAL_SECS = 5.0
_MIN_PAUSE_SECS = 2 * _INTERVAL_SECS
_PROGRESS = re.compile(r"^units .*\) ([\d,]+) examples")
_BATCH, _DIM, _IDS, _NETWORK_FLOATS = 2048, 16, 26 * 600, 400_000  # of a step of DLRM, about


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The runs, and the large cluster."""

    rows: int = option(400_000, "of the runs' tables", least=4)
    epochs: int = option(60, "of each run", least=1)
    mean_secs: float = option(
        5.0, "on average from two checkpoints after a recovery to a kill", above=0
    )
    seed: int = option(1, "of the kills; the run that is predicted has the next", least=0)
    workers: int = option(256, "of the large cluster", least=1)
    servers: int = option(64, "of the large cluster", least=1)
    server_rows: int = option(100_000_000, "of each of its servers", least=1)
    mtbf_hours: tuple[float, ...] = option((6.0, 24.0, 168.0), "of each of its tasks", above=0)
    interval_secs: tuple[float, ...] = option(
        (30.0, 120.0, 600.0), "between its checkpoints", above=0
    )
    days: float = option(5.0, "to simulate", above=0)
    restore_rate: float = option(5_300_000.0, "rows per second that a server restores", above=0)
    save_secs: float = option(20.0, "from a cut to its commit", above=0)
    save_slowdown: float = option(0.08, "share of the speed that a save takes", least=0)
    worker_secs: float = option(90.0, "until a lost worker or server has a machine", least=0)


def train(data: Path, model_dir: Path, config: Config, pauses: Sequence[float], *more: str) -> Any:
    """Trains; kills a parameter server after each pause, which begins as steps go on."""
    killed: list[float] = []
    goes_on, ended = threading.Semaphore(0), threading.Event()

    def kill() -> None:
        for pause in pauses:
            goes_on.acquire()
            if ended.wait(pause):
                return
            for pid in pids_writing(f"{model_dir}/logs/ps-{len(killed) % 2}.log"):
                killed.append(time.time())
                os.kill(pid, signal.SIGKILL)

    client = subprocess.Popen(
        [
            *(sys.executable, "-m", "embedps.train", "--model=benchmarks.row_visits"),
            *(f"--data={data}", f"--model-dir={model_dir}", "--num-ps=2", "--num-workers=2"),
            *(f"--epochs={config.epochs}", "--batch-size=2048", "--row-dim=16", "--eval=none"),
            *(f"--delta-secs={_INTERVAL_SECS}", "--log-secs=0.5", *more),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    first, lines = None, []
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for line in client.stdout or ():
            lines.append(line)
            if first is None and _PROGRESS.match(line):
                first = time.time()
                goes_on.release()
            if line.startswith("recovered: "):
                goes_on.release()
        secs = time.time() - (first or 0.0)
    finally:
        ended.set()
        goes_on.release()
        client.kill()
        client.wait()
        killer.join()
    summary = read_json(model_dir / "summary.json")
    if not summary.get("finished"):
        raise EmbedpsError(f"the run did not finish: {''.join(lines[-5:])}")
    recoveries = summary["recoveries"]
    noticed = [max(0.0, r["noticed_at"] - at) for r, at in zip(recoveries, killed, strict=False)]
    return {
        "secs": round(secs, 2),
        "killed_at": [round(at - (first or 0.0), 2) for at in killed],
        "noticed": [round(each, 2) for each in noticed],
        "recovered": [r["secs"] for r in recoveries],
        "in_place": [r.get("in_place", False) for r in recoveries],
    }


def draw_pauses(config: Config, seed: int) -> list[float]:
    """Draws the seconds before some kills, more than a run needs."""
    rng = random.Random(seed)
    # A cut is committed in between: a run gives up where recoveries lead nowhere.
    return [_MIN_PAUSE_SECS + rng.expovariate(1 / config.mean_secs) for _ in range(100)]


def measure(config: Config, run: Run) -> Content:
    """Trains calm, and with kills in each way, twice."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        write_dataset(data, train=[config.rows // 4] * 4, evaluation=[1000])
        calm = train(data, Path(folder) / "calm", config, [])["secs"]
        runs: dict[str, Any] = {}
        for way, flags in WAYS.items():
            runs[way] = {
                name: train(
                    data,
                    Path(folder) / f"{name} {way}",
                    config,
                    draw_pauses(config, config.seed + turn),
                    *flags,
                )
                for turn, name in enumerate(("fit", "check"))
            }
        run.save({"calm_secs": calm, "runs": runs})
    return evaluate(config, calm_secs=calm, runs=runs, interval_secs=_INTERVAL_SECS)


def evaluate(
    config: Config, *, calm_secs: float, runs: Mapping[str, Any], interval_secs: float
) -> Content:
    """Fits the ways of recovery, predicts the runs that were not fitted, and the large cluster."""
    small = Cluster(
        workers=2, servers=2, rows_per_server=0, interval_secs=interval_secs, save_secs=1.0
    )
    fitted, check = {}, {}
    for way, of in runs.items():
        fit, other = of["fit"], of["check"]
        whole = [each for each in fit["recovered"] if each is not None]  # not cut short
        if not whole:
            raise UsageError(f"no recovery of the run by {way} ended: give more --epochs")
        fitted[way] = secs = statistics.mean(whole) + statistics.mean(fit["noticed"])
        failures = [Failure(at, "server") for at in other["killed_at"]]
        recovery = Recovery(name=way, fixed_secs=secs, repeats=True)
        found = simulate(small, recovery, failures, work_secs=calm_secs)
        check[way] = {
            "kills": len(failures),
            "secs": other["secs"],
            "predicted_secs": round(found.secs, 1),
            "off": round(found.secs / other["secs"] - 1, 3),
        }
    return {
        "calm_secs": calm_secs,
        "runs": runs,
        "fitted_secs": {way: round(secs, 2) for way, secs in fitted.items()},
        "check": check,
        "large": _large(config, fitted),
        "standby_bytes_per_sec": round(_standby_bytes(config)),
    }


def _large(config: Config, fitted: Mapping[str, float]) -> list[dict[str, Any]]:
    ways = [
        *_ways_with_repeats(config, fitted),
        # It must be noticed and found; nothing is read.
        Recovery(name="standby", fixed_secs=1.0),
        # A log is applied twice as fast as it came.
        Recovery(
            name="sender logs",
            fixed_secs=config.worker_secs + fitted["in place"],
            rows_per_sec=config.restore_rate,
            replay_share=0.5,
        ),
    ]
    made = []
    for hours, interval, way in itertools.product(config.mtbf_hours, config.interval_secs, ways):
        cluster = Cluster(
            workers=config.workers,
            servers=config.servers,
            rows_per_server=config.server_rows,
            interval_secs=interval,
            save_secs=config.save_secs,
            save_slowdown=config.save_slowdown,
            worker_secs=config.worker_secs,
            unit_secs=2.0,
        )
        mtbf = 3600 * hours
        failures = random_failures(
            cluster, worker_mtbf_secs=mtbf, server_mtbf_secs=mtbf, seed=config.seed
        )
        found: Outcome = simulate(cluster, way, failures, most_secs=86_400 * config.days)
        made.append(
            {
                "mtbf_hours": hours,
                "interval_secs": interval,
                "way": way.name,
                "exists": way.is_measured,
                **{k: round(v, 4) for k, v in dataclasses.asdict(found).items() if k != "secs"},
            }
        )
    return made


def _ways_with_repeats(config: Config, fitted: Mapping[str, float]) -> list[Recovery]:
    return [
        Recovery(
            name=way,
            fixed_secs=config.worker_secs + secs,
            rows_per_sec=config.restore_rate,
            repeats=True,
            is_measured=True,
        )
        for way, secs in fitted.items()
    ]


def _standby_bytes(config: Config) -> float:
    """Predicts what a standby of a server gets: ids and gradients of each step."""
    share = 1 / config.servers
    step = ServerStep(
        ids=_IDS * share, row_floats=_IDS * share * _DIM, network_floats=_NETWORK_FLOATS * share
    )
    steps_per_sec = config.workers * 50_000 / _BATCH
    return predict("bytes_in", step) * steps_per_sec


def layout(content: Content) -> list[Part]:
    """Lays out the check, and the large cluster."""
    config = content.get("config", {})
    rows = [
        [
            way,
            f"{content['fitted_secs'][way]:.1f} s",
            f"{each['kills']}",
            f"{each['secs']:.1f} s",
            f"{each['predicted_secs']:.1f} s",
            f"{each['off']:+.1%}",
        ]
        for way, each in content["check"].items()
    ]
    heads = ["way", "a recovery, fitted", "kills of another run", "it took", "predicted", "off"]
    told = f"Without kills {content['calm_secs']:.1f} s; a cut every {_INTERVAL_SECS:.0f} s."
    check = Table(heads=heads, rows=rows, title="The simulator beside runs on this machine")
    large = content["large"]
    ways = list(dict.fromkeys(each["way"] for each in large))
    marked = {each["way"]: each["exists"] for each in large}
    table = Table(
        title="Predicted: share of the time that is training which is kept",
        heads=["a task fails every", "a cut every"]
        + [way if marked[way] else f"{way} (not built)" for way in ways],
        rows=[
            [
                f"{hours:g} h",
                f"{interval:g} s",
                *(
                    f"{each['goodput']:.3f}"
                    for way in ways
                    for each in large
                    if (each["mtbf_hours"], each["interval_secs"], each["way"])
                    == (hours, interval, way)
                ),
            ]
            for hours, interval in dict.fromkeys(
                (each["mtbf_hours"], each["interval_secs"]) for each in large
            )
        ],
    )
    standby = content["standby_bytes_per_sec"] / 125e6
    said = (
        f"{config.get('workers', '')} workers, {config.get('servers', '')} servers of "
        f"{config.get('server_rows', 0):,} rows. A new machine takes "
        f"{config.get('worker_secs', 0):g} s; a save slows by "
        f"{config.get('save_slowdown', 0):.0%}. A standby of a server gets {standby:.1f} Gb/s of "
        "gradients at 50,000 examples per second and worker, and holds the server's rows again."
    )
    return [check, told, table, said]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)

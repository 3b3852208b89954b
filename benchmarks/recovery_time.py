"""Measures the cost of a lost server: `python -m benchmarks.recovery_time`.

A lost worker: trains on a cluster given by TF_CONFIG whose servers run on this machine, and reads
the examples per second from the client's progress: with all workers, with one killed, and after its
restart. Each worker has one thread for its ops. With its own cores, each worker has a share of 1/W.
If all workers compete for the cores, the others use the cores of the lost one, so it costs less.

A lost parameter server: trains on a local cluster until its tables hold the given number of rows,
kills one of two parameter servers at random moments, and reads from summary.json how long each
phase took until the first unit was done: with `--no-recover-in-place`, and without.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chaos import pids_writing
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, figures
from benchmarks.row_visits import write_dataset
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.cluster.local_processes import _free_ports
from embedps.config_fields import option
from embedps.errors import EmbedpsError
from embedps.run.summary import read_json

_PHASES = {
    "served_secs": "from then on until it serves again",
    "restored_secs": "from then on until it has its part of the last checkpoint",
}
_DELTA_SECS = 5
_ALONE = "it cannot be restored alone: "
_EXAMPLES = re.compile(r"^units .*\) ([\d,]+) examples")


def lose_worker(*, num_workers: int, phase_secs: float) -> dict[str, Any]:
    """Trains, kills a worker and starts it again; returns the examples per second per phase."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(num_workers + 2)]
    cluster = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]}

    def environment(job: str, index: int) -> dict[str, str]:
        config = {"cluster": cluster, "task": {"type": job, "index": index}}
        more = {"TF_CONFIG": json.dumps(config), "PYTHONUNBUFFERED": "1"}
        if job == "worker":
            more |= {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}
        return {**os.environ, **more}

    def serve(job: str, index: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "embedps.server"],
            env=environment(job, index),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    with tempfile.TemporaryDirectory() as folder:
        write_dataset(Path(folder) / "data", train=[50_000] * 4, evaluation=[1000])
        servers = [serve("ps", 0), *(serve("worker", i) for i in range(num_workers))]
        client = subprocess.Popen(
            [
                *(sys.executable, "-m", "embedps.train", "--model=benchmarks.row_visits"),
                *(f"--data={folder}/data", f"--model-dir={folder}/model", "--eval=none"),
                *("--epochs=100000", "--batch-size=256", "--unit-rows=4096", "--log-secs=0.2"),
                "--delta-secs=1000",
            ],
            env=environment("chief", 0),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

        def rate(secs: float) -> float:
            first = last = None
            until = time.monotonic() + secs
            while last is None or last[0] < until:
                line = client.stdout.readline() if client.stdout else ""
                if not line:
                    raise EmbedpsError("the client ended")
                found = _EXAMPLES.match(line)
                if found:
                    last = (time.monotonic(), int(found[1].replace(",", "")))
                    first = first or last
            if first is None:
                raise EmbedpsError("the client showed no progress")
            return (last[1] - first[1]) / max(1e-9, last[0] - first[0])

        try:
            rate(5.0)  # warm-up: the first units trace and create rows
            rates = {"all": rate(phase_secs)}
            servers[-1].kill()
            servers[-1].wait()
            rates["one_down"] = rate(phase_secs)
            servers[-1] = serve("worker", num_workers - 1)
            for line in servers[-1].stdout or ():
                if "has a client" in line:
                    break
            rates["back"] = rate(phase_secs)
        finally:
            for process in (client, *servers):
                process.kill()
                process.wait()
    return {name: round(value, 1) for name, value in rates.items()}


def lose_parameter_servers(
    *, num_rows: int, in_place: bool, kills: int, seed: int = 0
) -> dict[str, Any]:
    """Trains until a checkpoint has `num_rows`, then kills one of two servers, again and again.

    Each kill comes at a random moment after the first checkpoint since the recovery before.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        data, model_dir = Path(folder) / "data", Path(folder) / "model"
        write_dataset(data, train=[num_rows // 4] * 4, evaluation=[1000])
        client = subprocess.Popen(
            [
                *(sys.executable, "-m", "embedps.train", "--model=benchmarks.row_visits"),
                *(f"--data={data}", f"--model-dir={model_dir}", "--num-ps=2", "--num-workers=2"),
                *("--epochs=100000", "--batch-size=2048", "--row-dim=16", "--eval=none"),
                *(f"--delta-secs={_DELTA_SECS}", "--log-secs=1"),
                *([] if in_place else ["--no-recover-in-place"]),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        lines: list[str] = []
        killed_at: list[float] = []
        try:
            while len(killed_at) < kills:
                _await_checkpoint(client, model_dir, lines, num_rows, after=killed_at[-1:])
                time.sleep(rng.uniform(0.0, _DELTA_SECS))  # during a save, or between two
                (pid,) = pids_writing(f"{model_dir}/logs/ps-{rng.randrange(2)}.log")
                os.kill(pid, signal.SIGKILL)
                killed_at.append(time.time())
                while not _next_line(client, lines).startswith("recovered: "):
                    pass
            client.send_signal(signal.SIGTERM)
            client.communicate(timeout=120)
            summary = read_json(model_dir / "summary.json")
        finally:
            client.kill()
            client.wait()
    recoveries = summary["recoveries"]
    if len(recoveries) != kills:
        raise EmbedpsError(f"{kills} servers were killed, and {len(recoveries)} losses recorded")
    each = [_phases(*lost) for lost in zip(killed_at, recoveries, strict=True)]
    keys = dict.fromkeys(key for phases in each for key in phases)
    return {
        "rows": sum(summary["tables"].values()),
        "restarts": sum(not recovery["in_place"] for recovery in recoveries),
        "why_restarted": [line.partition(_ALONE)[2].strip() for line in lines if _ALONE in line],
        "kills": each,
        **{key: statistics.median(k[key] for k in each if key in k) for key in keys},
    }


def _next_line(client: subprocess.Popen[str], lines: list[str]) -> str:
    line = client.stdout.readline() if client.stdout else ""
    if not line:
        raise EmbedpsError(f"the client ended: {''.join(lines[-5:])}")
    lines.append(line)
    return line


def _await_checkpoint(
    client: subprocess.Popen[str],
    model_dir: Path,
    lines: list[str],
    num_rows: int,
    after: Sequence[float],
) -> None:
    """Waits until a checkpoint has so many rows, and is later than a moment."""
    while True:
        _next_line(client, lines)  # one a second
        last = CheckpointDirectory(model_dir).latest()
        if last is None or last.progress["examples"] < num_rows:
            continue
        if all(last.wall_time > moment for moment in after):
            return


def _phases(killed_at: float, recovery: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "secs_until_noticed": round(recovery["noticed_at"] - killed_at, 2),
        "secs_until_first_unit": recovery["secs"],
        **{key: recovery[key] for key in ("units", "steps", "examples")},
        **{key: recovery[key] for key in _PHASES if key in recovery},
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The three runs."""

    num_workers: int = option(2, "of the run that loses one", least=1)
    phase_secs: float = option(20.0, "with all workers, without one, and with it again", above=0)
    rows: int = option(2_000_000, "of the tables when a parameter server is killed", least=4)
    kills: int = option(20, "of servers that recover in place", least=1)
    restart_kills: int = option(3, "of servers with --no-recover-in-place", least=1)
    seed: int = option(1, "of the moments and of which server", least=0)


def measure(config: Config, run: Run) -> Content:
    """Loses parameter servers, again in place, then a worker of another run."""
    what = {"num_rows": config.rows, "seed": config.seed}
    server = lose_parameter_servers(**what, in_place=False, kills=config.restart_kills)
    in_place = lose_parameter_servers(**what, in_place=True, kills=config.kills)
    rates = lose_worker(num_workers=config.num_workers, phase_secs=config.phase_secs)
    lost = 1 - rates["one_down"] / ((rates["all"] + rates["back"]) / 2)
    return {
        "parameter_server": server,
        "in_place": in_place,
        "worker": {
            "num_workers": config.num_workers,
            "examples_per_sec": rates,
            "lost_while_one_is_down": round(lost, 3),
            "share_of_one_worker": round(1 / config.num_workers, 3),
        },
    }


def layout(content: Content) -> list[Part]:
    """Lays out what each loss costs."""
    server, worker = content["parameter_server"], content["worker"]
    parts = [
        figures(
            f"--no-recover-in-place: a parameter server is killed, {server['rows']:,} rows",
            _of_server(server),
        )
    ]
    if in_place := content.get("in_place"):
        parts.append(figures("the same, in place", _of_server(in_place)))
    rates = worker["examples_per_sec"]
    of_worker = [
        ["examples per second with all", f"{rates['all']:,.0f}"],
        ["with one killed", f"{rates['one_down']:,.0f}"],
        ["with it back", f"{rates['back']:,.0f}"],
        ["share of the speed that is lost", f"{worker['lost_while_one_is_down']:.2f}"],
        ["share of the workers", f"{worker['share_of_one_worker']:.2f}"],
    ]
    title = f"a worker of {worker['num_workers']} on these cores is killed"
    return [*parts, figures(title, of_worker)]


def _of_server(server: Mapping[str, Any]) -> list[list[str]]:
    """Makes the rows of a table; seconds and steps are medians of the kills."""
    became = "trained again" if "served_secs" in server else "lost"
    rows = [
        ["until the first unit is done again", f"{_secs(server):.1f} s"],
        ["until it is noticed", f"{server['secs_until_noticed']:.1f} s"],
        *([text, f"{server[key]:.1f} s"] for key, text in _PHASES.items() if key in server),
        [f"steps since the last checkpoint, which are {became}", f"{server['steps']:,.0f}"],
    ]
    if kills := server.get("kills"):
        p95, most = np.quantile([*map(_secs, kills)], [0.95, 1.0])
        rows.insert(1, [f"p95, and most, of {len(kills)} kills", f"{p95:.1f} s; {most:.1f} s"])
        rows.append(["kills after which the client began anew", f"{server['restarts']}"])
    return rows


def _secs(lost: Mapping[str, Any]) -> float:
    return float(lost["secs_until_noticed"] + lost["secs_until_first_unit"])


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)

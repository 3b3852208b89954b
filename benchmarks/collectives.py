"""Measures workers in step by collectives: `python -m benchmarks.collectives`.

It trains DLRM (W1) on two processes of this machine under
MultiWorkerMirroredStrategy, and on two workers with one and with two parameter servers, in turns.
It also measures each collective of a step alone, with the sizes of the step.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import child, report, workload
from benchmarks.harness import Benchmark, Content, Options, main
from benchmarks.layout import Part, Table
from benchmarks.peers import protocol
from embedps.config_fields import option

_WORKERS = 2
_BATCH = 2048
_ROWS = 65536
_STEPS_PER_UNIT = 16
_CALLS = 30  # of a collective alone


class _Processes:
    """The workers of a MultiWorkerMirroredStrategy, which run units when they are told to."""

    def __init__(self, folder: Path) -> None:
        ports = [_free_port() for _ in range(_WORKERS)]
        cluster = {"worker": [f"localhost:{port}" for port in ports]}
        self._processes = [self._start(folder, cluster, index) for index in range(_WORKERS)]

    @staticmethod
    def _start(folder: Path, cluster: dict[str, Any], index: int) -> subprocess.Popen[str]:
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        return subprocess.Popen(
            child.command("benchmarks.collectives:serve", folder=str(folder)),
            env=os.environ | {"TF_CONFIG": json.dumps(task)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str) -> Any:
        """Tells all workers what to do; gives the answer of the first."""
        for process in self._processes:
            print(what, file=process.stdin, flush=True)
        lines = [process.stdout.readline() if process.stdout else "" for process in self._processes]
        return json.loads(lines[0])

    def close(self) -> None:
        """Ends the workers."""
        for process in self._processes:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def serve(folder: str) -> None:
    """Answers requests as a worker: "units N" and "parts"."""
    answers, sys.stdout = sys.stdout, sys.stderr
    import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

    # isort: split
    import tensorflow as tf

    from benchmarks.example_columns import describe
    from embedps import kernels
    from embedps.engine.dense_optimizer import make_dense_optimizer
    from embedps.engine.step_model import StepModel
    from embedps.engine.steps.step_workers import StepWorkers
    from embedps.engine.unit_functions import make_train_unit
    from embedps.models import dlrm
    from embedps.tables.collection import EmbeddingCollection

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    kernels.load()
    task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    group = StepWorkers(task, _WORKERS)
    work = protocol.read_work(Path(folder), {})
    tf.keras.utils.set_random_seed(1)
    config = dlrm.Config(
        embedding_dim=work.dim,
        bottom_mlp=tuple(work.bottom_mlp[:-1]),
        top_mlp=tuple(work.top_mlp[:-1]),
        sparse_optimizer="rowwise_adagrad",
    )
    columns = describe(work.num_numerics, len(work.cardinalities))
    model = StepModel(dlrm.make(config, columns), columns)
    collection = EmbeddingCollection(
        model.tables, model.features, devices=["/device:CPU:0"] * _WORKERS, container="collectives"
    )
    optimizer = make_dense_optimizer("adagrad", 0.01, model.model)
    unit_rows = _WORKERS * _STEPS_PER_UNIT * _BATCH
    unit_input = model.input(batch_rows=_BATCH, shuffle_rows=unit_rows)
    train_unit = make_train_unit(
        model, optimizer, collection, tf.distribute.get_strategy(), unit_input, workers=group
    )
    path = tf.constant(f"{folder}/batches.parquet")
    units = iter(range(1 << 30))

    def run(count: int) -> dict[str, float]:
        began = time.perf_counter()
        for _ in range(count):
            unit = next(units)
            first = unit * unit_rows % (_ROWS - unit_rows + 1)
            numbers = (first, unit_rows, unit, unit * _WORKERS * _STEPS_PER_UNIT)
            arguments = [tf.constant(n, tf.int64) for n in numbers]
            train_unit(path, *arguments, tf.constant(0.01))["examples"].numpy()
        return {"examples": count * unit_rows, "secs": time.perf_counter() - began}

    def parts() -> dict[str, float]:
        """Measures each collective alone, in ms."""
        ids = work.ids[:, :_BATCH]
        distinct = sum(len(set(of.tolist())) for of in ids) // _WORKERS
        floats = sum(v.shape.num_elements() for v in model.model.trainable_variables)
        share = floats // _WORKERS
        sizes: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {}
        inputs = {
            "counts of ids": tf.zeros([1 + 27 * _WORKERS], tf.int64),
            "ids": tf.zeros([_WORKERS, distinct], tf.int64),
            "rows": tf.zeros([_WORKERS, distinct * work.dim]),
            "gradients": tf.zeros([_WORKERS, distinct * work.dim + share]),
            "sums of the network": tf.zeros([share]),
        }
        for key, name in enumerate(inputs, 9):
            call = group.all_to_all if inputs[name].shape.rank == 2 else group.all_gather
            sizes[name] = tf.function(lambda t, call=call, key=key: call(t, key=key))
        took = {}
        for name, call_it in sizes.items():
            call_it(inputs[name])
            began = time.perf_counter()
            for _ in range(_CALLS):
                call_it(inputs[name])[0].numpy()
            took[name] = round((time.perf_counter() - began) / _CALLS * 1e3, 2)
        return took

    del strategy
    for line in sys.stdin:
        what, *count = line.split()
        answer = run(int(count[0])) if what == "units" else parts()
        print(json.dumps(answer), file=answers, flush=True)


def measure(rounds: int) -> dict[str, Any]:
    """Measures the systems in turns."""
    from benchmarks.peers.embedps_dlrm import Embedps
    from embedps.cluster.local_cluster import LocalCluster

    batches = workload.make_batches(workload.W1, _ROWS)
    rates: dict[str, list[float]] = {}
    with workload.files(workload.W1, batches) as folder, tempfile.TemporaryDirectory() as logs:
        workers = _Processes(folder)
        clusters = {
            f"{n} parameter server{'s' * (n > 1)}": LocalCluster(
                num_ps=n, num_workers=_WORKERS, log_dir=Path(logs) / str(n)
            )
            for n in (1, 2)
        }
        try:
            variant = protocol.Variant(task="train", kind="rowwise_adagrad", batch=_BATCH)
            # The programs own the tables.
            programs = {
                name: Embedps(protocol.read_work(Path(folder), {}), cluster)
                for name, cluster in clusters.items()
            }
            runs = {name: program.prepare(variant) for name, program in programs.items()}
            for run in runs.values():
                run(5.0)
            workers.ask("units 3")
            for _ in range(rounds):
                for name, run in runs.items():
                    done = run(5.0)
                    rates.setdefault(name, []).append(done["examples"] / done["secs"])
                done = workers.ask("units 4")
                rates.setdefault("collectives", []).append(done["examples"] / done["secs"])
            parts = workers.ask("parts")
        finally:
            workers.close()
            for cluster in clusters.values():
                cluster.close()
    of_all = {name: report.spread(of) for name, of in rates.items()}
    best = max(of["median"] for name, of in of_all.items() if name != "collectives")
    return {
        "examples_per_sec": of_all,
        "share_of_parameter_servers": round(of_all["collectives"]["median"] / best, 3),
        "step_ms": {
            name: round(_WORKERS * _BATCH / of["median"] * 1e3, 1) for name, of in of_all.items()
        },
        "collective_ms": parts,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """How often."""

    rounds: int = option(5, "of each system", least=1)


def layout(content: Content) -> list[Part]:
    """Lays out the speeds, and each collective alone."""
    rows = [
        [
            name,
            f"{of['median']:,.0f}",
            f"{of['min']:,.0f} to {of['max']:,.0f}",
            f"{content['step_ms'][name]:.0f} ms",
        ]
        for name, of in content["examples_per_sec"].items()
    ]
    alone = ", ".join(f"{name} {ms:.1f} ms" for name, ms in content["collective_ms"].items())
    config = content["config"]
    return [
        Table(heads=["exchange", "examples/s", "rounds", "a batch of each worker"], rows=rows),
        f"DLRM (W1) on {config['workers']} workers, batches of {config['batch']}. Each collective "
        f"of a step alone: {alone}.",
    ]


BENCHMARK = Benchmark(
    config=Config,
    measure=lambda config, run: {
        "config": {
            "workers": _WORKERS,
            "batch": _BATCH,
            "steps_per_unit": _STEPS_PER_UNIT,
            "workload": "w1",
        },
        **measure(config.rounds),
    },
    layout=layout,
)


if __name__ == "__main__":
    main(BENCHMARK)

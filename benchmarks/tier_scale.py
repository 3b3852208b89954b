"""Trains tables that one machine's memory does not hold: `python -m benchmarks.tier_scale`.

DLRM, with a small network, trains in one process by the library's Trainer, with the coldest rows
on disk. The first examples have new ids only, so each makes 26 rows; those that follow have ids by
Zipf's law, with labels that follow from them. Meanwhile a thread looks up the rows of new batches,
which nobody read ahead, and times each lookup. At the end the run is saved and scored: its eval
split has ids by the law, and some that are as often any row, so most of these are on disk. Then
`embedps checkpoint verify` reads the checkpoint, and another process restores it on other shards
with the same limit and scores it. All scores must have the same bits.

Files are in a folder of the disk that is to be measured; they take about 190 bytes per row of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import embedps  # before TensorFlow: it chooses the Keras
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, figures
from embedps.config_fields import option

# isort: split
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import child
from benchmarks.example_columns import describe
from benchmarks.tiers import time_lookup
from benchmarks.workload import W1, Batches, make_batches
from embedps.data.dataset import describe_file
from embedps.data.dataset_metadata import Split
from embedps.errors import EmbedpsError
from embedps.evaluation.evaluator import Evaluator
from embedps.models import dlrm
from embedps.run.opened_run import open_run
from embedps.tables.tiered import Tiered

TABLES = len(W1.cardinalities)
_FLOAT_BYTES = 84  # of a row of dim 16 with row-wise Adagrad in memory, without its head
_UNIT_ROWS, _BATCH, _GROUP_ROWS = 131072, 2048, 32768
_PROBE_SECS, _UNIFORM = 0.25, 16384
_FILL = "fill.parquet"


def _write(folder: Path, name: str, parts: Iterator[Batches]) -> None:
    names = [f"I{i + 1}" for i in range(W1.num_numerics)], [f"C{i + 1}" for i in range(TABLES)]
    types = [("label", pa.float32()), *((n, pa.float32()) for n in names[0])]
    types += [(n, pa.int64()) for n in names[1]]
    schema = pa.schema([pa.field(n, kind, nullable=False) for n, kind in types])
    packed = dict.fromkeys(names[1], "DELTA_BINARY_PACKED")
    with pq.ParquetWriter(
        folder / name, schema, compression="zstd", use_dictionary=False, column_encoding=packed
    ) as writer:
        for part in parts:
            columns = [part.labels, *part.numerics.T, *part.ids]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=_GROUP_ROWS)


def new_ids(rows: int) -> Iterator[Batches]:
    """Yields examples that have each id of each table once."""
    for first in range(0, rows, _UNIT_ROWS):
        ids = np.arange(first, min(first + _UNIT_ROWS, rows))
        rng = np.random.default_rng(first)
        yield Batches(
            numerics=np.zeros((len(ids), W1.num_numerics), np.float32),
            ids=np.broadcast_to(ids, (TABLES, len(ids))),
            labels=(rng.random(len(ids)) < 0.25).astype(np.float32),
        )


def by_zipf(rows: int, examples: int, *, seed: int) -> Iterator[Batches]:
    """Yields examples whose ids follow Zipf's law, and whose labels follow from the ids."""
    workload = dataclasses.replace(W1, cardinalities=(rows,) * TABLES)
    for first in range(0, examples, _UNIT_ROWS):
        drawn = make_batches(workload, min(_UNIT_ROWS, examples - first), seed=seed + first)
        yield dataclasses.replace(drawn, labels=labels_of(drawn.ids, seed + first))


def uniform(rows: int, examples: int) -> Iterator[Batches]:
    """Yields examples whose ids are any of a table's."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, rows, (TABLES, examples))
    yield Batches(
        numerics=rng.random((examples, W1.num_numerics), dtype=np.float32),
        ids=ids,
        labels=labels_of(ids, 1),
    )


def labels_of(ids: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.float32]:
    """Draws labels: each id of each table weighs from -0.5 to 0.5 in the logit."""
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed *= np.arange(1, 2 * TABLES, 2, dtype=np.uint64)[:, None]
    logits = ((mixed >> np.uint64(40)) / 2**24 - 0.5).sum(axis=0) - 1.2
    drawn = np.random.default_rng([seed, 7]).random(len(logits))
    return np.asarray(drawn < 1 / (1 + np.exp(-logits)), np.float32)


def write_dataset(folder: Path, rows: int, examples: int, held_out: int) -> None:
    """Writes the splits: new ids, then ids by Zipf's law; and what is held out."""
    _write(folder, _FILL, new_ids(rows))
    _write(folder, "zipf.parquet", by_zipf(rows, examples, seed=10_000))
    _write(folder, "held_out.parquet", by_zipf(rows, held_out, seed=1))
    _write(folder, "uniform.parquet", uniform(rows, _UNIFORM))
    splits = {"train": (_FILL, "zipf.parquet"), "eval": ("held_out.parquet", "uniform.parquet")}
    of = {
        name: Split(
            rows=sum(pq.read_metadata(folder / each).num_rows for each in names),
            positives=0,
            files=tuple(describe_file(folder, folder / each) for each in names),
        )
        for name, names in splits.items()
    }
    dataset = describe(W1.num_numerics, TABLES)
    dataclasses.replace(dataset, directory=folder, splits=of).save()


class _Probe(threading.Thread):
    """Times lookups of batches that are new, and counts their rows."""

    def __init__(self, tables: Any, rows: int) -> None:
        super().__init__(name="probe")
        self.secs: list[float] = []
        self.rows = 0
        self._tables, self._card, self._end = tables, rows, threading.Event()

    def run(self) -> None:
        while not self._end.wait(_PROBE_SECS):
            seed = 100_000_000 + len(self.secs)
            (batch,) = by_zipf(self._card, _BATCH, seed=seed)
            secs, rows = time_lookup(self._tables, batch.ids, insert=False)
            self.secs.append(secs)
            self.rows += rows

    def end(self) -> None:
        self._end.set()
        self.join()


class _Noted(embedps.Callback):
    """Notes the state of the tables at the end of each unit."""

    def __init__(self, rows: int, examples: int) -> None:
        self.trainer: embedps.Trainer | None = None
        self.units: list[dict[str, Any]] = []
        self.probe: _Probe | None = None
        self._card, self._left = rows, examples

    def on_unit_end(self, run: Any, event: Any) -> None:
        if self.trainer is None:
            return
        tables, is_fill = self.trainer.collection, event.unit.path.endswith(_FILL)
        (shard,), tier = tables.use(), tables.tier_stats()
        counts = {k: v for k, v in tier._asdict().items() if k not in ("rows_on_disk", "errors")}
        self.units.append(
            {
                "at": time.monotonic(),
                "is_fill": is_fill,
                "examples": event.unit.num_rows,
                "rows": sum(tables.stats().rows.values()),
                "rows_on_disk": sum(tier.rows_on_disk.values()),
                "memory_bytes": shard.memory_bytes,
                "resident_bytes": shard.resident_bytes,
                "problems": list(tier.errors),
                "probed": self.probe.rows if self.probe else 0,
                **counts,
            }
        )
        self._left -= event.unit.num_rows
        if self._left == 0 and self.probe:
            self.probe.end()
        if not is_fill and self._left and not self.probe:
            self.probe = _Probe(tables, self._card)
            self.probe.start()


def train(
    folder: str, rows: int, max_bytes: int, examples: int, stats_secs: float
) -> dict[str, Any]:
    """Trains, saves and scores; gives what was noted."""
    config = embedps.TrainConfig.from_options(
        model="dlrm",
        data=f"{folder}/data",
        model_dir=f"{folder}/model",
        eval="inline",
        shuffle=False,
        batch_size=_BATCH,
        unit_rows=_UNIT_ROWS,
        delta_secs=1e6,
        stats_secs=stats_secs,
        log_secs=30,
        max_memory_bytes=max_bytes,
        spill_dir=f"{folder}/spill",
    )
    network = dlrm.Config(bottom_mlp=(32, 16), top_mlp=(32, 1))
    noted = _Noted(rows, rows + examples)
    trainer = embedps.Trainer.from_config(config, network, callbacks=[noted])
    noted.trainer = trainer
    began = time.monotonic()
    result = trainer.fit()
    return {
        "began": began,
        "units": noted.units,
        "lookup_secs": noted.probe.secs if noted.probe else [],
        "scores": _scores(result.summary["evaluation"]),
        "saves": result.summary["checkpoint"],
        "peak_bytes": _peak(),
    }


def restore(folder: str, shards: int, max_bytes: int) -> dict[str, Any]:
    """Restores the checkpoint on some shards in this process, and scores it."""
    run = open_run(f"{folder}/model")
    memory = Tiered(max_memory_bytes=max_bytes, directory=f"{folder}/spill")
    made = Evaluator(
        run.recommender(),
        run.dataset,
        run.directory,
        num_shards=shards,
        seed=run.seed,
        memory=memory,
    )
    began = time.monotonic()
    records = made.apply(run.manifest())
    restored, peak = time.monotonic(), _peak()
    tier, stats = made.collection.tier_stats(), made.collection.stats()
    scored = made.score()
    return {
        "records": records,
        "rows": sum(stats.rows.values()),
        "rows_on_disk": sum(tier.rows_on_disk.values()),
        "disk_bytes": tier.disk_bytes,
        "memory_bytes": stats.memory_bytes,
        "secs": restored - began,
        "restore_peak_bytes": peak,
        "score_secs": time.monotonic() - restored,
        "peak_bytes": _peak(),
        "scores": _scores({**scored.values, "examples": scored.examples}),
    }


def _scores(found: Mapping[str, Any]) -> dict[str, float]:
    return {k: found[k] for k in ("auc", "logloss", "calibration", "examples")}


def _peak(pid: int | str = "self") -> int:
    """Returns the most memory that a process had, since it began to run its program."""
    with open(f"/proc/{pid}/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:"))


def _verify(folder: Path) -> dict[str, float]:
    """Runs `embedps checkpoint verify`; gives its seconds and its peak of memory."""
    began, peak = time.monotonic(), 0
    line = [sys.executable, "-m", "embedps", "checkpoint", "verify", str(folder / "model")]
    with subprocess.Popen(line) as process:
        while process.poll() is None:
            with contextlib.suppress(StopIteration):
                peak = max(peak, _peak(process.pid))
            time.sleep(0.2)
    if process.returncode:
        raise child.ChildError(f"embedps checkpoint verify ended with {process.returncode}")
    return {"secs": time.monotonic() - began, "peak_bytes": peak}


def _rows_per_step(data: Path) -> float:
    """Counts the distinct rows of a step by Zipf's law, of some steps."""
    (first, *_) = pq.ParquetFile(data / "zipf.parquet").iter_batches(8 * _BATCH)
    ids = np.stack([first[f"C{i + 1}"].to_numpy() for i in range(TABLES)])
    steps = [ids[:, at : at + _BATCH] for at in range(0, ids.shape[1], _BATCH)]
    return float(np.mean([sum(len(np.unique(c)) for c in step) for step in steps]))


def measure(config: Config, run: Run) -> Content:
    """Trains, verifies and restores."""
    rows = config.rows // TABLES
    Path(config.work_dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=config.work_dir) as name:
        folder = Path(name)
        (folder / "data").mkdir()
        write_dataset(folder / "data", rows, config.examples, config.held_out)
        per_step = _rows_per_step(folder / "data")
        trained: dict[str, Any] = child.call(
            "benchmarks.tier_scale:train",
            folder=name,
            rows=rows,
            max_bytes=config.max_memory_bytes,
            examples=config.examples,
            stats_secs=config.stats_secs,
        )
        results = _of_training(trained, per_step)
        run.save({"results": results})
        results["verify"] = _verify(folder)
        run.save({"results": results})
        results["restore"] = restored = child.call(
            "benchmarks.tier_scale:restore",
            folder=name,
            shards=config.shards,
            max_bytes=config.restore_bytes or config.max_memory_bytes,
        )
        if restored["scores"] != trained["scores"]:
            raise EmbedpsError(
                f"the scores must be those before the save, {trained['scores']}, but are "
                f"{restored['scores']}"
            )
    return {"config": {"batch_size": _BATCH, "unit_rows": _UNIT_ROWS}, "results": results}


def _of_training(trained: dict[str, Any], per_step: float) -> dict[str, Any]:
    """Gives the figures of making rows, of training after it, and of the save."""
    units: list[dict[str, Any]] = trained["units"]
    fills = sum(unit["is_fill"] for unit in units)
    made, last = units[fills - 1], units[-1]
    warm = units[fills + (len(units) - fills) // 2 - 1]
    rest = units[units.index(warm) + 1 :]
    accesses = sum(-(-u["examples"] // _BATCH) for u in rest) * per_step
    accesses += last["probed"] - warm["probed"]
    lookup_ms = 1000 * np.array(trained["lookup_secs"])
    saves, floats = trained["saves"]["bases"], last["rows"] - last["rows_on_disk"]
    return {
        "rows": last["rows"],
        "rows_on_disk": last["rows_on_disk"],
        "memory_bytes": last["memory_bytes"],
        "other_bytes_per_row": (last["memory_bytes"] - floats * _FLOAT_BYTES) / last["rows"],
        "resident_bytes": last["resident_bytes"],
        "peak_bytes": trained["peak_bytes"],
        "disk_bytes": last["disk_bytes"],
        "new_rows_per_sec": made["rows"] / (made["at"] - trained["began"]),
        "new_rows_secs": made["at"] - trained["began"],
        "training_secs": last["at"] - made["at"],
        "examples_per_sec": sum(u["examples"] for u in rest) / (last["at"] - warm["at"]),
        "rows_per_step": per_step,
        "hit_rate": 1 - (last["read"] - warm["read"]) / accesses,
        "disk_reads_per_sec": (last["disk_reads"] - warm["disk_reads"]) / (last["at"] - warm["at"]),
        "write_amplification": last["written"] / (last["written"] - last["moved"]),
        "evicted": last["evicted"],
        "problems": sorted({each for unit in units for each in unit["problems"]}),
        "lookups": len(lookup_ms),
        "lookup_ms": {
            "p50": float(np.median(lookup_ms)),
            "p99": float(np.percentile(lookup_ms, 99)),
            "longest": float(lookup_ms.max()),
        },
        "save_secs": saves["secs"],
        "save_bytes": saves["bytes"],
        "scores": trained["scores"],
        "units": [
            [round(u["at"] - trained["began"], 1), u["rows"], u["rows_on_disk"], u["memory_bytes"]]
            for u in units
        ],
    }


def layout(content: Content) -> list[Part]:
    """Lays out what the run took."""
    r, gb = content["results"], 1e9
    v, again, ms = r["verify"], r["restore"], r["lookup_ms"]
    shards = content["config"]["shards"]
    rows = [
        ["rows in memory; on disk", f"{r['rows'] - r['rows_on_disk']:,}; {r['rows_on_disk']:,}"],
        [
            "tables in memory; the process at most",
            f"{r['memory_bytes'] / gb:.1f} GB; {r['peak_bytes'] / gb:.1f} GB",
        ],
        ["of it per row, besides floats", f"{r['other_bytes_per_row']:.1f} bytes"],
        [
            "spill files; writes per row",
            f"{r['disk_bytes'] / gb:.1f} GB; {r['write_amplification']:.2f}",
        ],
        [
            "steps that make rows",
            f"{r['new_rows_per_sec']:,.0f} rows/s for {r['new_rows_secs']:.0f} s",
        ],
        [
            f"steps by Zipf's law, of {r['rows_per_step']:,.0f} rows",
            f"{r['examples_per_sec']:,.0f} examples/s for {r['training_secs']:.0f} s; "
            f"{r['hit_rate']:.3f} of the rows in memory",
        ],
        [
            f"{r['lookups']:,} lookups meanwhile: p50, p99, longest",
            f"{ms['p50']:.1f}, {ms['p99']:.1f}, {ms['longest']:.1f} ms",
        ],
        ["save", f"{r['save_bytes'] / gb:.1f} GB in {r['save_secs']:.0f} s"],
        ["verify", f"{v['secs']:.0f} s, {v['peak_bytes'] / gb:.2f} GB of memory"],
        [
            f"restore on {shards} shards",
            f"{again['secs']:.0f} s, {again['rows'] / again['secs']:,.0f} rows/s, "
            f"{again['restore_peak_bytes'] / gb:.1f} GB of memory",
        ],
        [
            "AUC and log loss before the save and after the restore",
            f"{r['scores']['auc']:.5f} and {r['scores']['logloss']:.5f}, the same bits",
        ],
    ]
    return [figures(f"{r['rows']:,} rows x 16, row-wise Adagrad", rows)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The tables, their memory, and what they train on."""

    rows: int = option(300_000_000, "of all tables, about", least=100_000)
    max_memory_bytes: int = option(15_000_000_000, "of the tables", least=1)
    restore_bytes: int = option(0, "the same of the restored tables; 0: as many", least=0)
    shards: int = option(3, "of the restored tables", least=1)
    examples: int = option(8_388_608, "by Zipf's law", least=_UNIT_ROWS)
    held_out: int = option(262_144, "to score, by Zipf's law", least=1)
    stats_secs: float = option(60.0, "between the run's looks at its tables", least=0)
    work_dir: str = option("/tmp", "on the disk to measure", metavar=DIR)


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)

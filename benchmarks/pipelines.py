"""Converts Criteo TSV to Parquet: `python -m benchmarks.pipelines`.

Measures in turn, in one run and on the same files: `pipelines.criteo` with two processes;
`pyarrow.csv`, which reads and writes without checks, split or shuffle; and the simplest Beam job,
which makes a dict per row. Then measures the memory of `pipelines.criteo` (two processes and their
runner) on a tenth of the input and on all of it.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import child, report
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table, figures, spread
from embedps.config_fields import option
from embedps.pipelines.criteo_format import FIELDS, IDS, INTEGERS

_WORKERS = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
_NUM_FILES = 2
_SAMPLE_SECS = 0.05


def _logs(folder: Path, rows: int) -> list[Path]:
    """Generates logs of `rows` rows in total, or keeps existing ones."""
    files = [folder / f"rows-{rows}" / f"day_{i}.tsv" for i in range(_NUM_FILES)]
    for i, path in enumerate(files):
        command = [sys.executable, "-m", "embedps.pipelines.generate", "--seed", str(i + 1)]
        command += ["--rows", str(rows // _NUM_FILES), "--output", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return files


def _ours(files: Sequence[Path], output: Path) -> list[str]:
    command = [sys.executable, "-m", "embedps.pipelines.criteo", "--input", *map(str, files)]
    # One shard per worker, so that each writes full row groups at either size.
    return [*command, "--output", str(output), f"--num-shards={_NUM_FILES}", *_WORKERS]


def _seconds(files: Sequence[Path], output: Path) -> float:
    """Runs `pipelines.criteo`; returns the seconds in its last line, without Python's start."""
    done = subprocess.run(_ours(files, output), check=True, capture_output=True, text=True)
    return float(done.stdout.strip().splitlines()[-1].split()[0])


def _call(name: str, files: Sequence[Path], output: Path) -> float:
    paths = {"files": list(map(str, files)), "output": str(output)}
    return float(child.call(f"benchmarks.pipelines:{name}", **paths))


def run_pyarrow(files: Sequence[str], output: str) -> float:
    """Reads each file with pyarrow.csv on two threads and writes it unchanged."""
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    started = time.perf_counter()
    for file in files:
        table = csv.read_csv(
            file,
            read_options=csv.ReadOptions(column_names=list(FIELDS)),
            parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
        )
        pq.write_table(table, Path(output) / f"{Path(file).stem}.parquet", compression="zstd")
    return time.perf_counter() - started


def parse_row(line: str) -> dict[str, Any]:
    """Parses a line into a dict: a label, numbers and ids."""
    fields = line.split("\t")
    row: dict[str, Any] = {"label": float(fields[0])}
    for name, field in zip(INTEGERS, fields[1:14], strict=True):
        row[name] = float(field) if field else None
    for name, field in zip(IDS, fields[14:], strict=True):
        row[name] = int(field, 16) if field else -1
    return row


def run_row_dicts(files: Sequence[str], output: str) -> float:
    """Runs the Beam job of row dicts, also with two processes."""
    import apache_beam as beam
    import pyarrow as pa
    from apache_beam.options.pipeline_options import PipelineOptions

    kinds = [pa.float32()] * (1 + len(INTEGERS)) + [pa.int64()] * len(IDS)
    schema = pa.schema(list(zip(FIELDS, kinds, strict=True)))
    started = time.perf_counter()
    options = PipelineOptions(["--runner=FnApiRunner", *_WORKERS])
    with beam.Pipeline(options=options) as pipeline:
        (
            pipeline
            | beam.Create(list(files))
            | beam.Reshuffle()
            | beam.io.ReadAllFromText()
            | beam.Map(parse_row)
            | beam.io.WriteToParquet(f"{output}/rows", schema, codec="zstd", num_shards=2)
        )
    return time.perf_counter() - started


def _memory_mib(command: Sequence[str], output: Path) -> dict[str, float]:
    """Runs a command and returns the peak memory of it and its children.

    Anonymous memory is allocated memory; proportional memory also counts pages of mapped files.
    """
    shutil.rmtree(output, ignore_errors=True)
    peaks = {"anonymous": 0.0, "proportional": 0.0}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(_SAMPLE_SECS):
            held = {"Pss_Anon": 0, "Pss": 0}
            for pid in _family(process.pid):
                try:
                    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
                except OSError:
                    continue
                for line in lines:
                    name, value = line.split(":")
                    if name in held:
                        held[name] += int(value.split()[0])
            peaks["anonymous"] = max(peaks["anonymous"], held["Pss_Anon"] / 1024)
            peaks["proportional"] = max(peaks["proportional"], held["Pss"] / 1024)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, list(command))
    finally:
        finished.set()
        thread.join()
    return {name: round(value, 1) for name, value in peaks.items()}


def _family(pid: int) -> list[int]:
    members = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for number in children:
            members += _family(int(number))
    return members


def measure(folder: Path, *, rows: int, row_dict_rows: int, repeats: int) -> dict[str, Any]:
    """Measures everything; keeps the logs in `folder` for the next run."""
    files, few = _logs(folder, rows), _logs(folder, row_dict_rows)
    output = folder / "output"
    runs = {
        "pipelines.criteo": (rows, lambda: _seconds(files, output)),
        "pyarrow.csv": (rows, lambda: _call("run_pyarrow", files, output)),
        "row dicts": (row_dict_rows, lambda: _call("run_row_dicts", few, output)),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, (num_rows, take) in runs.items():
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir(parents=True)
            rates[name].append(num_rows / take())
    memory = {
        num_rows: _memory_mib(_ours(_logs(folder, num_rows), output), output)
        for num_rows in (rows // 10, rows)
    }
    shutil.rmtree(output, ignore_errors=True)
    ours = rates["pipelines.criteo"]
    return {
        "config": {
            "files": _NUM_FILES,
            "bytes": sum(path.stat().st_size for path in files),
            "processes": 2,
        },
        "rows_per_sec": {name: report.spread(values) for name, values in rates.items()},
        "of_pyarrow": report.spread(
            [a / b for a, b in zip(ours, rates["pyarrow.csv"], strict=True)]
        ),
        "of_row_dicts": report.spread(
            [a / b for a, b in zip(ours, rates["row dicts"], strict=True)]
        ),
        "peak_memory_mib": {str(num_rows): peak for num_rows, peak in memory.items()},
        "memory_growth": round(memory[rows]["anonymous"] / memory[rows // 10]["anonymous"], 3),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The logs."""

    rows: int = option(4_000_000, "of the logs", least=20)
    row_dict_rows: int = option(100_000, "of the logs for the job of row dicts", least=2)
    repeats: int = option(3, "of each program", least=1)
    data: str = option("data/benchmark", "keeps the logs for the next run", metavar=DIR)


def _measure(config: Config, run: Run) -> Content:
    sizes = {"rows": config.rows, "row_dict_rows": config.row_dict_rows}
    return measure(Path(config.data), repeats=config.repeats, **sizes)


def layout(content: Content) -> list[Part]:
    """Lays out the speeds, their ratios and the memory."""
    config = content["config"]
    speeds = [[name, spread(rate, ",.0f")] for name, rate in content["rows_per_sec"].items()]
    rows = [
        ["speed by that of pyarrow.csv", f"{spread(content['of_pyarrow'])}"],
        ["speed by that of row dicts", f"{spread(content['of_row_dicts'], '.1f')}"],
        *(
            [f"peak memory at {int(n):,} rows", f"{peak['anonymous']:.0f} MiB"]
            for n, peak in content["peak_memory_mib"].items()
        ),
        ["the latter by the former", f"{content['memory_growth']:.2f} x"],
    ]
    title = f"Criteo TSV to Parquet, {config['rows']:,} rows, {config['bytes'] / 1e6:,.0f} MB"
    return [Table(heads=[title, "rows per second"], rows=speeds), figures("pipelines.criteo", rows)]


BENCHMARK = Benchmark(config=Config, measure=_measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)

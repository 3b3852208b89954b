"""What a million examples cost: `python -m benchmarks.cost`.

Each step from a click log to answers runs as its real processes, on two numbers of examples: the
difference is what further examples cost, and the rest is what a start costs. So imports and
compilations are not counted as examples'. The model is DLRM of the Kaggle configuration on
generated clicks. Seconds are of processors, of all processes of a step together: other jobs on the
machine hardly change them. `benchmarks.process_usage` says which bytes count.

Training ends with a save, which is also measured alone: a base of all rows, in the process that
has them. Evaluation scores the training split. Serving is asked over gRPC for records of it.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks import child, open_loop, process_usage
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table
from benchmarks.process_usage import SentBytes, Usage
from benchmarks.served import running
from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.serving.server import messages
from embedps.serving.server.tensor_values import fill

_MILLION, _BILLION = 10**6, 10**9
_NAME = "model"
_DIFFERENT = 200  # requests, which are sent in turn
_TRAIN = {
    "train, one process": (),
    "train, 2 PS + 2 workers": ("--num-ps=2", "--num-workers=2"),
}
_ONE_PROCESS = next(iter(_TRAIN))
_LIFE = ("ingest", _ONE_PROCESS, "evaluate")  # each example once


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The examples and the requests."""

    rows: tuple[int, ...] = option((150_000, 450_000), "of the logs: two numbers", least=1000)
    candidates: tuple[int, ...] = option((1, 100), "per request, in turn", least=1, most=10_000)
    rates: tuple[int, ...] = option((200, 100), "requests per second, by size", least=1)
    secs: float = option(4.0, "of each load", above=0, most=3600)
    folder: str | None = option(None, "for the files; else the temporary folder", metavar=DIR)

    def __post_init__(self) -> None:
        """Checks each option, and that the numbers fit each other."""
        super().__post_init__()
        if len(self.rows) != 2 or self.rows[0] >= self.rows[1]:
            raise UsageError(f"--rows must be two numbers, the smaller first, but is {self.rows}")
        sizes, rates = len(self.candidates), len(self.rates)
        if sizes != rates:
            told = "--candidates and --rates must have as many values"
            raise UsageError(f"{told} but have {sizes} and {rates}")


def per_million(examples: tuple[int, int], used: tuple[Usage, Usage]) -> tuple[Usage, Usage]:
    """Splits two measurements into what a million examples cost, and what a start costs."""
    each = (used[1] - used[0]).times(1 / (examples[1] - examples[0]))
    return each.times(_MILLION), used[0] - each.times(examples[0])


def save(data: str, model_dir: str) -> dict[str, float]:
    """Restores a run in this process and saves all rows; gives what the save used."""
    import embedps

    config = embedps.TrainConfig.from_options(
        model="dlrm", data=data, model_dir=model_dir, eval="none"
    )
    saver = embedps.Trainer.from_config(config).saver
    if saver.last is None:
        raise UsageError(f"{model_dir} must have a checkpoint")
    saver.restart()  # so that a base comes
    before = process_usage.of_this_process()
    saver.save(
        step=saver.last.step + 1,
        ledger=saver.last.ledger,
        partially_applied=dict,
        progress={},
        final=True,
    )
    return dataclasses.asdict(process_usage.of_this_process() - before)


def make_requests(data: Dataset, candidates: int) -> list[bytes]:
    """Makes requests of the first records of the training split."""
    names = [*(each.name for each in data.numeric), *(each.name for each in data.categorical)]
    table = pq.read_table(data.paths("train")[0], columns=names)
    table = table.slice(0, candidates * _DIFFERENT)
    columns = {name: table[name].to_numpy() for name in names}
    made = []
    for first in range(0, table.num_rows - candidates + 1, candidates):
        request = messages.PredictRequest()
        request.model_spec.name = _NAME
        for name, values in columns.items():
            fill(request.inputs[name], np.ascontiguousarray(values[first : first + candidates]))
        made.append(request.SerializeToString())
    return made


class _Steps:
    """Runs the steps on one number of examples, in a folder of their own."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._rows, self._log = rows, folder / f"day_{rows}.tsv"
        self._data = folder / f"data-{rows}"
        self._models = {name: folder / f"model-{rows}-{i}" for i, name in enumerate(_TRAIN)}
        written = ("--rows", str(rows), "--output", str(self._log))
        child.run("embedps.pipelines.generate", *written)
        self.used: dict[str, tuple[int, Usage]] = {}

    @property
    def data(self) -> Dataset:
        return Dataset.open(self._data)

    @property
    def model(self) -> Path:
        return self._models[_ONE_PROCESS]

    def ingest(self) -> None:
        given = ("--input", str(self._log), "--output", str(self._data))
        self._add("ingest", self._rows, "embedps.pipelines.criteo", *given)
        self._examples = self.data.splits["train"].rows

    def train(self) -> None:
        for name, flags in _TRAIN.items():
            where = (f"--data={self._data}", f"--model-dir={self._models[name]}")
            given = (*where, "--model=dlrm", "--eval=none", "--delta-secs=86400", *flags)
            self._add(name, self._examples, "embedps.train", *given)

    def evaluate(self, model: Path) -> None:
        given = (f"--model-dir={model}", f"--data={self._data}", "--split=train", "--once")
        self._add("evaluate", self._examples, "embedps.evaluate", *given)

    def save(self) -> None:
        given = {"data": str(self._data), "model_dir": str(self.model)}
        used = Usage(**child.call("benchmarks.cost:save", **given))
        self._tell("save all rows", self._examples, used)

    def _add(self, name: str, examples: int, module: str, *arguments: str) -> None:
        self._tell(name, examples, process_usage.of_command(module, *arguments))

    def _tell(self, name: str, examples: int, used: Usage) -> None:
        self.used[name] = examples, used
        print(f"{name}, {examples} examples: {used}", flush=True)


def _serve(config: Config, steps: _Steps) -> dict[str, Any]:
    """Asks a server; gives what its start and a million candidates cost."""
    found: dict[str, Any] = {}
    with running("embedps.serve", f"--model-dir={steps.model}", f"--name={_NAME}") as server:
        pid = server.process.pid
        for candidates, rate in zip(config.candidates, config.rates, strict=True):
            requests = make_requests(steps.data, candidates)
            before: list[tuple[Usage, int]] = []
            start = process_usage.of_process(pid)
            with SentBytes(pid) as sent:

                def begin(sent: SentBytes = sent, before: list[Any] = before) -> None:
                    before.append((process_usage.of_process(pid), sent.num_bytes))

                load = open_loop.offer(
                    server.grpc, requests, rate, config.secs, seed=1, beside=begin
                )
            warm, warm_sent = before[0]
            used = process_usage.of_process(pid) - warm
            used = dataclasses.replace(used, sent_bytes=sent.num_bytes - warm_sent)
            examples = load.codes.get("OK", 0) * candidates
            name = f"serve, {candidates} per request"
            found[name] = {
                "examples": [examples],
                "codes": load.codes,
                "per_million": dataclasses.asdict(used.times(_MILLION / examples)),
                "start": dataclasses.asdict(start) if not found else None,
            }
            print(f"{name}: {found[name]}", flush=True)
    return found


def measure(config: Config, run: Run) -> Content:
    """Measures each step on both numbers of examples."""
    with tempfile.TemporaryDirectory(dir=config.folder) as name:
        few, many = (_Steps(Path(name), rows) for rows in config.rows)
        for steps in (few, many):
            steps.ingest()
            steps.train()
        for steps in (few, many):
            steps.evaluate(many.model)  # one model, so that only the examples differ
        served = _serve(config, many)
        rows = {steps: _rows_of(steps.model) for steps in (few, many)}
        for steps in (few, many):
            steps.save()
    results: dict[str, Any] = {}
    for step, (examples, used) in many.used.items():
        both = (few.used[step][0], examples), (few.used[step][1], used)
        of_million, start = per_million(*both)
        results[step] = {
            "examples": list(both[0]),
            "used": [dataclasses.asdict(each) for each in both[1]],
            "per_million": dataclasses.asdict(of_million),
            "start": dataclasses.asdict(start),
        }
    return {"rows": [rows[few], rows[many]], "results": results | served}


def _rows_of(model_dir: Path) -> int:
    """Reads how many rows a run has made."""
    from embedps.run.summary import SUMMARY_NAME, read_json

    return int(sum(read_json(model_dir / SUMMARY_NAME)["tables"].values()))


def _share(part: float, whole: float) -> str:
    is_share = 0 <= part <= whole and whole > 0  # differences of a few hundredths may not be
    return f"{part / whole:.0%}" if is_share else ""


def _mb(num_bytes: float) -> str:
    return f"{max(num_bytes, 0.0) / 1e6:,.0f}"


def layout(content: Content) -> list[Part]:
    """Lays out the costs of each step, and where they go."""
    results: Mapping[str, Any] = content["results"]
    rows = []
    for name, found in results.items():
        each, start = found["per_million"], found["start"]
        hours = each["cpu_secs"] * _BILLION / _MILLION / 3600
        rows.append(
            [
                name,
                f"{each['cpu_secs']:.1f}",
                _share(each["kernel_secs"], each["cpu_secs"]),
                *(_mb(each[f"{kind}_bytes"]) for kind in ("read", "written", "sent")),
                f"{start['cpu_secs']:.1f}" if start else "",
                f"{hours:.1f}",
            ]
        )
    heads = ["a million examples", "CPU s", "of it in the kernel", "MB read", "MB written"]
    heads += ["MB sent", "CPU s of a start", "CPU hours of a billion"]
    of_life = {name: results[name]["per_million"]["cpu_secs"] for name in _LIFE}
    whole = sum(of_life.values())
    goes = "; ".join(f"{name}: {_share(secs, whole)}" for name, secs in of_life.items())
    few, many = content["rows"]
    first, last = results[_ONE_PROCESS]["examples"]
    told = f"{first:,} and {last:,} examples made {few:,} and {many:,} rows. "
    told += f"Where the {whole:.0f} CPU seconds go that a million examples take once: {goes}."
    return [Table(heads=heads, rows=rows), told]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)

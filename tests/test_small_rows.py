"""A run whose rows and optimizer slots are small: its sidecar, predictions, export and plan."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embedps
from embedps import export, plan, predict
from embedps.console import command_line
from embedps.tables.specs import RowDtype, SlotDtype
from tests.builders import (
    TINY_DLRM,
    TINY_DLRM_FLAGS,
    latest,
    make_config,
    read_split,
    write_dataset,
)
from tests.commands import evaluations_of
from tests.processors import check_stock
from tests.serving.builders import ask, evaluated, tensors


def run(main: Any, **flags: object) -> None:
    given = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    assert command_line.run(main, given) == 0


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(("rows", "slots"), [("bfloat16", "bfloat16"), ("float16", "float32")])
def test_all_that_read_a_run_take_its_small_rows(
    tmp_path: Path, rows: RowDtype, slots: SlotDtype
) -> None:
    dataset, model_dir = write_dataset(tmp_path / "set", evaluation=(900,)), tmp_path / "m"
    config = make_config(dataset, model_dir, eval="sidecar", model="dlrm")
    model = dataclasses.replace(TINY_DLRM, row_dtype=rows, slot_dtype=slots)
    trainer = embedps.Trainer.from_config(config, model)
    trainer.fit()
    # The plan counts rows that the next checkpoint writes. With no checkpoint but the last, whose
    # rows stay listed until the next one, the run has them all, however long a save takes.
    stats = trainer.collection.stats()

    table = read_split(dataset)
    loaded = embedps.load(model_dir)
    scores = evaluated(loaded, table)["score"]
    labels = table["label"].to_numpy()
    log_loss = -np.log(np.where(labels == 1, scores, 1 - scores)).mean()
    assert evaluations_of(model_dir)[-1]["logloss"] == pytest.approx(log_loss, rel=1e-5)

    pattern = f"{dataset.directory}/eval/*.parquet"
    run(predict.main, model_dir=model_dir, input=pattern, output=tmp_path / "scores")
    paths = [tmp_path / "scores" / path.name for path in dataset.paths("eval")]
    predicted = pa.concat_tables(pq.read_table(path) for path in paths)["score"].to_numpy()
    np.testing.assert_array_equal(predicted, scores)

    run(export.main, model_dir=model_dir, output=tmp_path / "export")
    exported = tmp_path / "export" / str(latest(model_dir).number)
    (answers,) = ask({exported: {"serving_default": [tensors(table)]}})
    check_stock(answers["load/serving_default/0/score"], scores)

    planned = tmp_path / "plan.json"
    dtypes = (f"--row-dtype={rows}", f"--slot-dtype={slots}")
    given = (f"--data={dataset.directory}", "--model=dlrm", "--no-measure", f"--json={planned}")
    assert command_line.run(plan.main, [*given, *TINY_DLRM_FLAGS, *dtypes]) == 0
    tables = {each["name"]: each for each in json.loads(planned.read_text())["tables"]}
    assert {name: each["rows"] for name, each in tables.items()} == stats.rows
    for name, size in stats.table_bytes.items():
        assert tables[name]["table_bytes"] == pytest.approx(size, rel=0.1)

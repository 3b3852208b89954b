"""A run as MLflow has it, in a local file store."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import embedps
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from tests.builders import dataset_fixture, latest, make_config, make_dlrm

dataset = dataset_fixture()

with_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None,
    reason="mlflow is not installed: pip install 'embedps[mlflow]'",
)


def fit(dataset: Dataset, model_dir: Path, store: str, **fields: Any) -> embedps.FitResult:
    config = make_config(dataset, model_dir, eval="inline", **fields)
    callback = embedps.MlflowCallback(
        config, experiment="clicks", tracking_uri=store, parameters={"team": "ads"}
    )
    return embedps.Trainer(make_dlrm(dataset), dataset, config, callbacks=[callback]).fit()


@with_mlflow
def test_a_run_and_its_resume_are_one_run_of_mlflow(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    store, model_dir = (tmp_path / "store").as_uri(), tmp_path / "m"
    client = MlflowClient(store)
    fit(dataset, model_dir, store, batch_size=32)
    result = fit(dataset, model_dir, store, epochs=2, batch_size=32)
    experiment = client.get_experiment_by_name("clicks")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["batch_size"] == "32"
    assert (run.data.params["epochs"], run.data.tags["epochs"]) == ("1", "2")
    assert run.data.params["team"] == "ads"
    assert "evicted_rows" not in run.data.params  # None
    for name in ("auc", "logloss"):
        history = client.get_metric_history(run.info.run_id, name)
        assert [(m.step, m.value) for m in history] == [
            (s.step, s.get(name)) for s in result.scores
        ]
    assert len(result.scores) >= 2
    assert run.data.metrics["checkpoint"] == result.scores[-1].number
    assert run.data.metrics["training_auc"] == result.summary["training"]["auc"]
    last = latest(model_dir)
    manifest = client.download_artifacts(run.info.run_id, f"checkpoint/{last.number:08d}.json")
    assert json.loads(Path(manifest).read_text())["step"] == last.step
    summary = client.download_artifacts(run.info.run_id, "summary.json")
    assert json.loads(Path(summary).read_text())["finished"] is True


@with_mlflow
def test_a_store_that_is_gone_does_not_end_the_run(
    tmp_path: Path,
    dataset: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    (tmp_path / "file").write_text("no directory")
    result = fit(dataset, tmp_path / "m", (tmp_path / "file" / "store").as_uri())
    assert result.finished
    assert "MLflow could not be told: " in capfd.readouterr().out
    # The next process logs what this one could not.
    from mlflow.tracking import MlflowClient

    store = (tmp_path / "store").as_uri()
    fit(dataset, tmp_path / "m", store)
    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("clicks").experiment_id])
    assert run.data.metrics["auc"] == result.scores[-1].auc


def test_without_mlflow_a_line_says_what_to_install(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(UsageError, match=r"pip install 'embedps\[mlflow\]'"):
        embedps.MlflowCallback(make_config(dataset, tmp_path / "m"))

"""Tells MLflow of a run: parameters, scores, and at its end the manifest and the summary."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console.lines import say
from embedps.errors import UsageError
from embedps.run.config import TrainConfig
from embedps.run.summary import SUMMARY_NAME, read_json, write_json
from embedps.score_names import AT, scores_of
from embedps.storage.object_store import as_path
from embedps.training.callbacks import Callback, RunControl
from embedps.training.fit_result import FitResult

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

RUN_NAME = "mlflow.json"
_MAX_VALUE = 500  # characters
_NUMBER = "checkpoint"


class MlflowCallback(Callback):
    """Logs a run to MLflow, and goes on in the same run of MLflow when it resumes.

    MODEL_DIR/mlflow.json has the id of MLflow's run. Options that differ when it resumes become
    tags of it. If MLflow cannot be reached, a line says so, the training goes on, and scores are
    logged once it can.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        experiment: str = "embedps",
        tracking_uri: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes where to log.

        Args:
          config: of the run; its options are logged as parameters.
          experiment: of MLflow; it is made if it is not there.
          tracking_uri: of MLflow's server or store; by default MLflow's own, as of
            MLFLOW_TRACKING_URI.
          parameters: more of them, such as those of your model.

        Raises:
          UsageError: mlflow is not installed.
        """
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise UsageError(
                "MlflowCallback needs mlflow, which is not installed: pip install 'embedps[mlflow]'"
            ) from error
        self._make_client: Callable[[], MlflowClient] = lambda: MlflowClient(tracking_uri)
        self._path = as_path(config.model_dir)
        self._experiment = experiment
        given = {**config.to_options(), **(parameters or {})}
        self._parameters = {k: str(v)[:_MAX_VALUE] for k, v in given.items() if v is not None}
        self._client: MlflowClient | None = None
        self._run_id = ""
        self._last_number = -1
        self._waiting: list[tuple[int, int, Mapping[str, float | None]]] = []

    def on_evaluation(self, run: RunControl, entry: Mapping[str, Any]) -> None:
        self._waiting.append((entry["number"], entry["step"], scores_of(entry)))
        self._log(lambda client: None)

    def on_train_end(self, run: RunControl, result: FitResult) -> None:
        self._waiting += [(each.number, each.step, each.values) for each in result.scores]

        def end(client: MlflowClient) -> None:
            if result.checkpoint is not None:
                directory = CheckpointDirectory(self._path)
                path = directory.manifest_path(result.checkpoint)
                client.log_text(self._run_id, path.read_text(), f"checkpoint/{path.name}")
                training = result.summary.get("training") or {}
                found = {f"training_{name}": value for name, value in training.items()}
                found["examples_per_sec"] = result.examples_per_sec
                self._log_scores(client, found, step=directory.read(result.checkpoint).step)
            client.log_text(self._run_id, json.dumps(result.summary, indent=1), SUMMARY_NAME)
            client.set_terminated(self._run_id, "FINISHED" if result.finished else "KILLED")

        self._log(end)

    def _log(self, act: Callable[[MlflowClient], None]) -> None:
        """Logs the evaluations that wait, and something more."""
        try:
            if self._client is None:
                self._client = self._begin()
            while self._waiting:
                number, step, scores = self._waiting[0]
                if number > self._last_number:
                    self._log_scores(self._client, {**scores, _NUMBER: number}, step=step)
                    self._last_number = number
                self._waiting.pop(0)
            act(self._client)
        except Exception as error:  # a server of MLflow that is gone must not end the training
            said = " ".join(str(error).split())
            say(f"MLflow could not be told: {said or type(error).__name__}")

    def _begin(self) -> MlflowClient:
        """Begins a run of MLflow, or goes on in that of the directory."""
        client = self._make_client()
        file = self._path / RUN_NAME
        self._run_id = str(read_json(file).get("run_id", ""))
        if self._run_id:
            client.update_run(self._run_id, status="RUNNING")
            data = client.get_run(self._run_id).data
            self._last_number = int(data.metrics.get(_NUMBER, -1))
            for name, value in self._parameters.items():
                if data.params.get(name) != value:
                    client.set_tag(self._run_id, name, value)
            return client
        found = client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else client.create_experiment(self._experiment)
        self._run_id = client.create_run(experiment, run_name=self._path.name).info.run_id
        for name, value in self._parameters.items():
            client.log_param(self._run_id, name, value)
        write_json(file, {"run_id": self._run_id, "experiment": self._experiment})
        return client

    def _log_scores(
        self, client: MlflowClient, scores: Mapping[str, float | None], *, step: int
    ) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        # MLflow takes letters, digits and _-.:/ and spaces in the name of a metric.
        named = {re.sub(r"[^\w\-.:/ ]", "_", k.replace(AT, "/")): v for k, v in scores.items()}
        metrics = [Metric(k, float(v), now, step) for k, v in named.items() if v is not None]
        client.log_batch(self._run_id, metrics=metrics)

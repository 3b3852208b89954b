"""Training metrics while a run goes on: the text of the progress line, and TensorBoard points."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from embedps.checkpoint.format.manifest import Manifest
from embedps.console.progress import rate_text
from embedps.metrics import Accumulator, ClickScores, Counts
from embedps.storage.object_store import local_dir

_POINTS = ("logloss", "auc")  # of a click model


class TrainingLog:
    """Adds up the counts of units; any thread may add."""

    def __init__(self, model_dir: Path, accumulator: Callable[[], Accumulator]) -> None:
        """Has no units yet.

        Args:
          model_dir: gets the TensorBoard points.
          accumulator: makes an empty accumulator of the model's counts.
        """
        self._accumulator = accumulator
        self._folder = str(local_dir(model_dir) / "tensorboard")
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        self._lock = threading.Lock()  # guards the four below
        self._recent = accumulator()
        self._all = accumulator()
        self._examples = 0
        self._joint_steps = 0
        self._shown_at, self._shown_examples = time.monotonic(), 0

    def add(self, counts: Counts, *, rows: int, joint_steps: int) -> None:
        """Adds the counts of a unit, and how many steps of all workers it has."""
        with self._lock:
            self._recent.add(counts)
            self._all.add(counts)
            self._examples += rows
            self._joint_steps += joint_steps

    @property
    def examples(self) -> int:
        """The examples of this run."""
        with self._lock:
            return self._examples

    @property
    def joint_steps(self) -> int:
        """The steps of all workers together, of this run."""
        with self._lock:
            return self._joint_steps

    def result(self) -> tuple[int, ClickScores]:
        """Gives the number of examples of this run and their metrics, as of one moment."""
        with self._lock:
            return self._examples, self._all.result()

    def count_from_now(self) -> None:
        """Starts the interval that the next rate covers."""
        self._shown_at, self._shown_examples = time.monotonic(), self.result()[0]

    def show(self, *, step: int, rows: int, last: Manifest | None) -> str | None:
        """Writes TensorBoard points for the units since the last call.

        Args:
          step: number of the last step.
          rows: rows of the tables.
          last: the newest checkpoint.

        Returns:
          The text of the progress line; None if no unit ended since the last call.
        """
        with self._lock:
            recent, self._recent = self._recent.result(), self._accumulator()
            examples = self._examples
        if not recent.examples:
            return None
        now = time.monotonic()
        done, secs = examples - self._shown_examples, now - self._shown_at
        rate = rate_text(done, secs)
        self._shown_at, self._shown_examples = now, examples
        names = _POINTS if "logloss" in recent.values else recent.values
        points = {name: recent.get(name) for name in names}
        if rate:
            points["examples_per_sec"] = done / secs
        self.write("train", points, step=step)
        text = f"{examples:,} examples{rate}, {recent.brief()}, {rows:,} rows"
        if last is not None:
            saved, age = last.chain[-1], time.time() - last.wall_time
            text += f", {saved.kind} {saved.bytes / 1e6:.1f} MB {age:.0f} s ago"
        return text

    def write(
        self,
        run: str,
        points: Mapping[str, float | None],
        *,
        step: int,
        texts: Mapping[str, str] = {},
        histograms: Mapping[str, Any] = {},
    ) -> None:
        """Writes TensorBoard points, texts and histograms (HistogramProto) of one step, by name.

        Points of one name are one chart, with a line for each `run`: a folder beside that of the
        evaluator, `eval`.
        """
        # As one message: tf.summary.scalar runs some ops for each point, and tables have hundreds.
        message = tf.compat.v1.Summary()
        for name, value in points.items():
            if value is not None:  # a score that is not defined
                message.value.add(tag=name, simple_value=value)
        for name, text in texts.items():
            of_text = message.value.add(tag=name, tensor=tf.make_tensor_proto(text))
            of_text.metadata.plugin_data.plugin_name = "text"
        for name, histogram in histograms.items():
            message.value.add(tag=name, histo=histogram)
        # A full disk does not end the run here: failing checkpoints report it.
        with suppress(tf.errors.OpError), tf.device("/device:CPU:0"):
            writer = self._writers.get(run)
            if writer is None:
                writer = tf.summary.create_file_writer(f"{self._folder}/{run}")
                self._writers[run] = writer
            with writer.as_default():
                tf.summary.experimental.write_raw_pb(message.SerializeToString(), step=step)
            writer.flush()

"""Carries a model's Keras metrics as counts that add up over steps, units and workers.

A metric's variables would live on a server, cost messages in each step, and count a repeated
attempt at a unit twice. So a step is traced over stand-ins that begin at zero: what becomes of them
is what the step adds. Units return these counts, and the client adds those of completed units.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from embedps.engine.variable_stand_ins import standing_in
from embedps.errors import UsageError
from embedps.metrics import ClickMetrics


class Collected:
    """What a traced step counted; `counts` is there after the block of `collecting`."""

    counts: dict[str, tf.Tensor]


class MetricCounts:
    """The metrics of a model, whose variables are made."""

    def __init__(self, model: tf.keras.Model, *, skipped: Iterable[tf.Module] = ()) -> None:
        """Finds the metrics: the model's, and those of its layers and tasks.

        Args:
          model: built; if it is compiled, its metrics are built too.
          skipped: whose metrics are left out.
        """
        parts = {id(part) for each in skipped for part in (each, *each.submodules)}
        metrics = {id(m): m for m in model.metrics if m.variables and id(m) not in parts}
        # A metric may be made of others, such as the mean that it is: each variable counts once.
        inner = {id(part) for m in metrics.values() for part in m.submodules if id(part) in metrics}
        self._metrics: dict[str, tf.keras.metrics.Metric] = {}
        for metric in metrics.values():
            if id(metric) not in inner:
                self._metrics[_unique(metric.name, self._metrics)] = metric
        self._variables = {
            f"{name}/{i}": variable
            for name, metric in self._metrics.items()
            for i, variable in enumerate(metric.variables)
        }

    @property
    def variables(self) -> list[tf.Variable]:
        """The metrics' variables."""
        return list(self._variables.values())

    @contextmanager
    def collecting(self) -> Iterator[Collected]:
        """Makes metrics that are updated within the block count from zero, without assigning.

        Raises:
          UsageError: a metric replaces what it has counted, so that its counts do not add up.
        """
        collected = Collected()
        zeros = [tf.zeros(v.shape, v.dtype) for v in self.variables]
        with standing_in(self.variables, zeros, from_zero=True) as stand_ins:
            yield collected
        for index in stand_ins.assigned:
            raise self._cannot_add(list(self._variables)[index], "it assigns its state")
        collected.counts = dict(zip(self._variables, stand_ins.values, strict=True))

    def zero(self) -> dict[str, tf.Tensor]:
        """Returns the counts of no examples."""
        return {name: tf.zeros(v.shape, v.dtype) for name, v in self._variables.items()}

    def check(self, update: Callable[[], Any]) -> None:
        """Checks that what metrics count does not depend on what they have counted.

        Args:
          update: updates the metrics; the same each time.

        Raises:
          UsageError: a metric's counts cannot be added.
        """
        if all(type(metric) is ClickMetrics for metric in self._metrics.values()):
            return  # it adds; to see so takes a trace and two runs
        assigned: set[int] = set()

        @tf.function
        def updated(values: list[tf.Tensor]) -> list[tf.Tensor]:
            with standing_in(self.variables, values) as stand_ins:
                update()
            assigned.update(stand_ins.assigned)
            return stand_ins.values

        found = []
        for start in (0, 3):
            values = [tf.fill(v.shape, tf.cast(start, v.dtype)) for v in self.variables]
            pairs = zip(updated(values), values, strict=True)
            found.append([after.numpy() - before.numpy() for after, before in pairs])
        for index in assigned:
            raise self._cannot_add(list(self._variables)[index], "it assigns its state")
        for name, first, second in zip(self._variables, *found, strict=True):
            if not np.allclose(first, second, rtol=1e-3, atol=1e-3, equal_nan=True):
                raise self._cannot_add(name, "what it adds depends on its state")

    def scores(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Computes the metrics' results from the sums of their counts.

        A result that is a dict gives its entries, a vector one entry per element.
        """
        if not self._metrics:
            return {}
        session, results, feeds, constants = self._results
        values = {feeds[name]: totals[name] for name in self._variables}
        scores: dict[str, float] = {}
        for name, result in session.run(results, values | constants).items():
            parts = result if isinstance(result, Mapping) else {name: result}
            for key, value in parts.items():
                flat = np.asarray(value, np.float64)
                if flat.ndim == 0:
                    scores[_unique(key, scores)] = float(flat)
                else:
                    scores |= {f"{key}_{i}": float(x) for i, x in enumerate(flat.ravel())}
        return scores

    def details(self, totals: Mapping[str, Any]) -> dict[str, Any]:
        """Computes what metrics of clicks tell beside scores, from the sums of their counts."""
        found: dict[str, Any] = {}
        for name, metric in self._metrics.items():
            if isinstance(metric, ClickMetrics):
                values = [totals[f"{name}/{i}"] for i in range(len(metric.variables))]
                found |= metric.details(values)
        return found

    @functools.cached_property
    def _results(self) -> tuple[Any, dict[str, Any], dict[str, str], dict[str, Any]]:
        """A session, the results in its graph, the tensors to feed, and constants to feed too.

        It is a graph, because eagerly TensorFlow reads some variables past Python. It is no
        tf.function, because TensorFlow registers those with every server of a cluster, and
        complains on stderr of servers that have died.
        """
        graph = tf.__internal__.FuncGraph("scores")
        with graph.as_default(), tf.device("/device:CPU:0"):
            values = [tf.compat.v1.placeholder(v.dtype, v.shape) for v in self.variables]
            with standing_in(self.variables, values):
                results = {name: metric.result() for name, metric in self._metrics.items()}
                results = tf.nest.map_structure(tf.convert_to_tensor, results)
        feeds = {name: value.name for name, value in zip(self._variables, values, strict=True)}
        constants = {inside.name: outside.numpy() for outside, inside in graph.captures}
        return tf.compat.v1.Session(graph=graph), results, feeds, constants

    def _cannot_add(self, variable: str, why: str) -> UsageError:
        name = variable.rsplit("/", 1)[0]
        metric = self._metrics[name]
        return UsageError(
            f"metric {name!r} ({type(metric).__name__}) cannot be added over workers, as {why}: "
            "use one whose update only adds to its variables, such as a mean or a count"
        )


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    found, number = name, 1
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found

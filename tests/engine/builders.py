"""Models with their optimizers and tables, as a run makes them, and how their units train."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import Cluster
from embedps.data.dataset import Dataset
from embedps.engine.dense_optimizer import make_dense_optimizer, variables_of
from embedps.engine.recommender import Recommender
from embedps.engine.step_model import StepModel
from embedps.engine.steps.servers import RemoteExchange
from embedps.engine.steps.step_logs import StepLogs
from embedps.engine.steps.ways import ONE_PROCESS
from embedps.engine.unit_functions import EXCHANGES, make_train_unit
from embedps.tables.collection import EmbeddingCollection
from tests.tables.builders import Rows

_numbers = itertools.count()


class Trained:
    """A model, by default in this process, with tables of its own."""

    def __init__(
        self,
        recommender: Recommender,
        dataset: Dataset,
        cluster: Cluster | None = None,
        *,
        kind: Any = "sgd",
        rate: float = 0.1,
        seed: int = 5,
    ) -> None:
        self.cluster = cluster or EmbeddedCluster()
        self.file = dataset.split("train").files[0]
        self.path = str(dataset.absolute_path(self.file))
        tf.keras.utils.set_random_seed(seed)
        with self.cluster.scope():
            self.step = StepModel(recommender, dataset)
            self.optimizer: Any = make_dense_optimizer(kind, rate, self.step.model)
        self.collection = EmbeddingCollection(
            self.step.tables,
            self.step.features,
            devices=self.cluster.shard_devices,
            container=f"trained-{next(_numbers)}",
            learns=self.step.rows_learn,
        )
        self.logs = StepLogs(self.collection.container)

    @property
    def model(self) -> Any:
        """The user's."""
        return self.step.model

    def make_unit(self, batch_rows: int = 60, *, shuffle_rows: int = 0, **way: Any) -> Any:
        reader = self.step.input(batch_rows=batch_rows, shuffle_rows=shuffle_rows)
        return make_train_unit(
            self.step, self.optimizer, self.collection, self.cluster.strategy, reader, **way
        )

    def arguments(
        self,
        num_rows: int | None = None,
        *,
        first_row: int = 0,
        seed: int = 0,
        first_step: int = 0,
        rate: float = 0.1,
        ranks: Sequence[int] = (),
    ) -> tuple[tf.Tensor, ...]:
        """Those of a unit in the first file; by default all of it."""
        whole = (first_row, num_rows or self.file.rows, seed, first_step)
        numbers, more = ([tf.constant(n, tf.int64) for n in each] for each in (whole, ranks))
        return (tf.constant(self.path), *numbers, tf.constant(rate, tf.float32), *more)

    def run(self, unit: Any, *arguments: tf.Tensor) -> dict[str, np.ndarray]:
        """Has the cluster run a unit; by default all of the first file."""
        call = self.cluster.schedule(unit, arguments or self.arguments())
        return {name: np.asarray(value) for name, value in self.cluster.fetch(call).items()}

    def variables(self) -> list[tf.Variable]:
        return [*self.step.variables, *variables_of(self.optimizer)]

    def weights(self) -> list[np.ndarray]:
        return [v.numpy() for v in self.variables()]


def force_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has units of this process do as on a cluster."""
    monkeypatch.setitem(EXCHANGES, ONE_PROCESS, RemoteExchange)


def assign(variables: Iterable[tf.Variable], values: Iterable[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def check_close(
    ours: Iterable[Any], theirs: Iterable[Any], *, rtol: float = 0, atol: float = 0, of: str = ""
) -> None:
    """Checks that lists of arrays are equal, by default to the last bit."""
    for mine, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=rtol, atol=atol, err_msg=of)


def check_rows_close(rows: Rows, expected: Rows, *, rtol: float, atol: float) -> None:
    """Checks that rows have the same steps and counts, and nearly the same embeddings."""
    assert rows.keys() == expected.keys()
    for key, row in rows.items():
        theirs = expected[key]
        assert (row.last_step, row.frequency) == (theirs.last_step, theirs.frequency)
        np.testing.assert_allclose(row.embedding, theirs.embedding, rtol=rtol, atol=atol)


def check_messages(unit: Any, arguments: Sequence[tf.Tensor], num_ps: int, of: str = "") -> None:
    """Checks what a step sends: per server ids and gradients; and back rows with the variables."""
    servers = [f"/job:ps/replica:0/task:{task}" for task in range(num_ps)]
    assert tensors_between_tasks(unit, arguments) == {
        **{("", server): 2 for server in servers},
        **{(server, ""): 1 for server in servers},
    }, of


def tensors_between_tasks(unit: Any, arguments: Sequence[tf.Tensor]) -> dict[tuple[str, str], int]:
    """How many tensors the body of a unit's last loop, of a step, sends from which task to which.

    The worker is "".
    """
    graph = unit.get_concrete_function(*arguments).graph
    loop = [op for op in graph.get_operations() if op.type in ("While", "StatelessWhile")][-1]
    body = graph._get_function(loop.get_attr("body").name).graph
    outside = {id(inside): external.device for external, inside in graph.captures}
    passed = {  # the loop's own counters come first, what its body captures last
        inside.name: outside.get(id(given), "")
        for inside, given in zip(body.inputs, loop.inputs, strict=True)
    }

    def task(op: tf.Operation) -> str:
        device = op.device
        if op.type == "ReadVariableOp":  # is placed where the variable is, whatever it names
            device = passed[op.inputs[0].name]
        found = re.search(r"/job:ps.*/task:\d+", device)
        return found.group() if found else ""

    tensors = {
        (task(tensor.op), task(op), tensor.name)
        for op in body.get_operations()
        for tensor in op.inputs
        if tensor.dtype != tf.resource and task(tensor.op) != task(op)
    }
    return dict(collections.Counter((source, target) for source, target, _ in tensors))

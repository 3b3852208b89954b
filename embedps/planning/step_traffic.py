"""The scaling model: bytes and calls of a training step at a parameter server.

A step sends a server its ids, and gets rows and the network's variables; then it sends the
gradients of both (engine/steps/servers.py). So bytes are linear in ids, in floats of rows and in
floats of the network. Calls are so many per step, and so many per unit that a worker has a part of;
each call has bytes of its own.
`python -m benchmarks.scaling` counts them at sockets and fits the coefficients;
docs/performance.md has its errors. In every mode of `--sync` they are the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from embedps.engine.step_model import StepModel

TERMS = {
    "bytes_in": (
        "per step",
        "per distinct id",
        "per float of a gradient's row",
        "per float of the network",
        "per unit of a worker",
    ),
    "bytes_out": (
        "per step",
        "per float of a row",
        "per float of the network",
        "per unit of a worker",
    ),
    "calls": ("per step", "per unit of a worker"),
}

MODEL: Mapping[str, Sequence[float]] = {
    "bytes_in": (600.0, 8.03, 4.0, 4.005, 6000.0),
    "bytes_out": (1700.0, 4.005, 4.005, 2800.0),
    "calls": (3.8, 25.0),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerStep:
    """What a worker's step exchanges with a server.

    Attributes:
      ids: distinct ids.
      row_floats: of the ids' rows; a bfloat16 counts as half of a float.
      network_floats: of the variables that the server holds, counted in the same way.
      unit_steps: how many steps the worker takes per unit.
    """

    ids: float
    row_floats: float
    network_floats: float
    unit_steps: float = 16.0

    def terms(self, what: str) -> list[float]:
        """Returns the terms of the linear model of `what`; `TERMS` names them."""
        per_unit = 1 / self.unit_steps
        if what == "calls":
            return [1.0, per_unit]  # independent of tables and variables
        ids = [self.ids] if what == "bytes_in" else []
        return [1.0, *ids, self.row_floats, self.network_floats, per_unit]


def predict(what: str, step: ServerStep, model: Mapping[str, Sequence[float]] = MODEL) -> float:
    """Predicts a count of a step at a server.

    Args:
      what: "bytes_in", "bytes_out" or "calls".
      step: what is exchanged.
      model: the coefficients of each count.
    """
    return float(np.dot(model[what], step.terms(what)))


def place_variables(sizes: Sequence[int], num_servers: int) -> list[list[int]]:
    """Places variables as cluster/variable_placement.py does.

    Args:
      sizes: of the variables, in the order in which they are made.

    Returns:
      The indexes into `sizes` of each server's variables.
    """
    servers: list[list[int]] = [[] for _ in range(num_servers)]
    held = [0] * num_servers
    for i, size in enumerate(sizes):
        # Until each server has a variable, the strategy takes the servers in turn.
        server = i if i < num_servers else min(range(num_servers), key=held.__getitem__)
        servers[server].append(i)
        held[server] += size
    return servers


class Network:
    """The network's variables, as a server's part of a step counts them."""

    def __init__(
        self, model: StepModel, variables: Sequence[tf.Variable], sizes: Sequence[int]
    ) -> None:
        self._sizes = sizes
        self.wire_share = tf.as_dtype(model.recommender.wire_dtype).size / 4
        sent = {id(v) for v in model.model.trainable_variables}
        exact = {id(v) for v in model.state}
        self._floats = [
            self._floats_of(v, size) if id(v) in sent else size * (id(v) in exact)
            for v, size in zip(variables, sizes, strict=True)
        ]

    def _floats_of(self, variable: tf.Variable, size: int) -> float:
        return size * (self.wire_share if variable.shape.rank > 1 else 1)

    def floats_by_server(self, num_ps: int) -> list[float]:
        """Counts the floats that each server sends and gets per step."""
        placed = place_variables(self._sizes, num_ps)
        return [sum(self._floats[i] for i in of_server) for of_server in placed]

"""Declares how a training step exchanges rows, variables and gradients; each way does it its own.

A step begins with the rows and variables that its batch needs, computes gradients of both, and ends
when these are applied. `gradients_of` computes in the same way for all.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import tensorflow as tf

from embedps.data.unit_reader import Batch, UnitInput
from embedps.engine.server_optimizer import make_remote_variables
from embedps.engine.step_model import StepModel
from embedps.engine.steps.step_logs import StepLogs
from embedps.engine.steps.step_workers import StepWorkers
from embedps.engine.steps.unit_parts import Step
from embedps.metrics import Counts
from embedps.tables.activations import Activation, Ids
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.groups import TableGroup
from embedps.tables.lookup_result import LookupResult

UnitFunction: TypeAlias = Callable[..., Counts]
RowGradients: TypeAlias = Sequence[Sequence[tf.Tensor | None]]
"""By group and shard; None where the loss does not depend on the rows."""
Computed: TypeAlias = tuple[RowGradients, Sequence[tf.Tensor | None], Counts]
"""A batch's gradients of rows and weights, as `StepExchange.end` takes them, and its counts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepInputs:
    """Holds what a step got from the tables and the network.

    Attributes:
      lookup: the rows.
      weights: the variables' values; gradients are taken of these and of `lookup.rows`.
      number: the step's number, int64 scalar.
      learning_rate: of the tables, float32 scalar.
    """

    lookup: LookupResult
    weights: list[Any]
    number: tf.Tensor
    learning_rate: tf.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueInputs(StepInputs):
    """Holds also the values that the network computes with, and what becomes of its state.

    Attributes:
      read: maps each device to the values that were read from its variables.
      changes: what the step adds to the network's state, once it has computed.
    """

    read: Mapping[str, Sequence[tf.Tensor]]
    changes: list[tf.Tensor | None] = dataclasses.field(default_factory=list)


class StepParts(NamedTuple):
    """What an exchange is made of; each takes what it needs.

    Attributes:
      model: built.
      optimizer: as `dense_optimizer.make_dense_optimizer` makes it, its variables made.
      collection: the tables.
      logs: get the parameter servers' logs; by default nobody reads them.
      backup_workers: how many workers a group does not wait for.
      workers: those that exchange by collectives.
      replicas: how many parts of each step this process has.
      mirrored: has as many replicas, which compute the parts; None computes them on this device.
    """

    model: StepModel
    optimizer: Any
    collection: EmbeddingCollection
    logs: StepLogs | None = None
    backup_workers: int = 0
    workers: StepWorkers | None = None
    replicas: int = 1
    mirrored: tf.distribute.MirroredStrategy | None = None


AnyInputs = TypeVar("AnyInputs", bound=StepInputs)
AnyValues = TypeVar("AnyValues", bound=ValueInputs)


class StepExchange(abc.ABC, Generic[AnyInputs]):
    """Gets a training step's inputs and applies its gradients.

    Attributes:
      collection: the tables.
      steps_per_iteration: how many steps one iteration of a unit's loop should run in sequence.
      num_lanes: how many parts of each step are this process'; the unit's last step may have fewer.
      ranks: the rank that the caller's batches have in each step, those of its first lane, of how
        many, and the step before the unit's first one (see `StepPart`); None if each call of a
        unit's function says it.
      all_take_each_step: each rank takes part in each step, with an empty batch if need be.
    """

    steps_per_iteration = 1
    num_lanes = 1
    ranks: tuple[int, int, int] | None = (0, 1, -1)
    all_take_each_step = False

    def __init__(self, parts: StepParts) -> None:
        self.collection = parts.collection

    @abc.abstractmethod
    def begin(self, ids: Mapping[str, Ids], step: Step) -> AnyInputs:
        """Gets the rows and variables that a batch needs.

        Args:
          ids: as `EmbeddingCollection.lookup` takes them; absent rows are created.
          step: the batch's.
        """

    def read_ahead(self, ids: Mapping[str, Ids]) -> None:
        """Is told the ids of a later step of the iteration, once the first step has begun."""

    def computing(self, inputs: AnyInputs) -> AbstractContextManager[None]:
        """Makes the network compute with a step's inputs within the block."""
        return nullcontext()

    def combine(self, inputs: AnyInputs) -> dict[str, Activation]:
        """Combines a step's rows; see `EmbeddingCollection.combine`."""
        return self.collection.combine(inputs.lookup)

    @abc.abstractmethod
    def end(
        self,
        inputs: AnyInputs,
        row_gradients: RowGradients,
        gradients: Sequence[tf.Tensor | None],
    ) -> None:
        """Applies the gradients of `inputs.lookup.rows` and of `inputs.weights`, once.

        What has already applied a step of this number ignores them.
        """

    def take(
        self,
        begun: Sequence[tuple[Batch, AnyInputs]],
        compute: Callable[[Batch, AnyInputs], Computed],
    ) -> Counts:
        """Takes a step that has begun: computes the parts of this process, and ends the step.

        Args:
          begun: by lane, the batch and what `begin` gave for it.
          compute: `gradients_of` them.

        Returns:
          The counts of all lanes.
        """
        [(batch, inputs)] = begun
        rows, dense, counts = compute(batch, inputs)
        self.end(inputs, rows, dense)
        return counts

    def enter_unit(self) -> Any:
        """Begins a unit, in its graph; returns what `leave_unit` takes."""

    def leave_unit(self, entered: Any, last: tf.Tensor) -> None:
        """Ends a unit, in its graph; `last` is the number of its last part."""

    def total(self, counts: Counts) -> Counts:
        """Gives the counts that a unit's function returns, of those of the caller's batches."""
        return counts


class ValueExchange(StepExchange[AnyValues]):
    """Computes with values that it has read, and updates with the ops of a parameter server."""

    def __init__(self, parts: StepParts) -> None:
        """Takes what it trains.

        Raises:
          UsageError: the optimizer cannot take its gradients so.
        """
        super().__init__(parts)
        model = parts.model
        self._variables = make_remote_variables(model.model, parts.optimizer, model.state)

    @contextmanager
    def computing(self, inputs: AnyValues) -> Iterator[None]:
        """Makes the network use the values that were read, and keep its state as it is."""
        with (
            self._variables.using(inputs.weights),
            self._variables.carrying(inputs.read, inputs.changes),
        ):
            yield

    def _read(self) -> dict[str, list[tf.Tensor]]:
        """Reads the variables, each on its device."""
        read = {}
        for device in self._variables.devices:
            with tf.device(device):
                read[device] = self._variables.read(device)
        return read


class ClipNorms(NamedTuple):
    """Limits of the norms of a step's gradients; 0 is no limit.

    Attributes:
      rows: of each row's gradient, in tables whose optimizer brings none.
      dense: of the network's gradients, all together (Pascanu et al. 2013, arXiv:1211.5063).
    """

    rows: float = 0.0
    dense: float = 0.0

    def __call__(self, rows: Any, dense: Any, groups: Sequence[TableGroup]) -> tuple[Any, Any]:
        """Scales gradients down to the limits; keeps None where there is no gradient."""
        if self.rows:
            rows = [
                [
                    g if g is None or group.optimizer.clip_norm
                    else tf.clip_by_norm(g, self.rows, axes=[1])
                    for g in of_group
                ]
                for of_group, group in zip(rows, groups, strict=True)
            ]  # fmt: skip
        if self.dense:
            flat, _ = tf.clip_by_global_norm(tf.nest.flatten(dense), self.dense)
            dense = tf.nest.pack_sequence_as(dense, flat)
        return rows, dense


NO_CLIP = ClipNorms()


def gradients_of(
    exchange: StepExchange[AnyInputs],
    model: StepModel,
    batch: Batch,
    inputs: AnyInputs,
    clip: ClipNorms,
) -> Computed:
    """Computes a batch's gradients and counts."""
    with exchange.computing(inputs), tf.GradientTape() as tape:
        watched = (inputs.lookup.rows, inputs.weights)
        tape.watch(watched)
        loss, counts = model.count(batch, exchange.combine(inputs), training=True)
    rows, dense = tape.gradient(loss, watched)
    rows, dense = clip(rows, dense, exchange.collection.groups)
    return rows, dense, counts


def next_batch(
    unit_input: UnitInput,
    reader: tf.Tensor,
    model: StepModel,
    *,
    training: bool = True,
) -> Batch:
    """Reads the next batch of a unit, prepared for the model."""
    batch = unit_input.next(reader)
    return batch._replace(columns=model.prepare(batch.columns, training=training))


def sum_counts(counts: Sequence[Counts]) -> Counts:
    """Adds counts up."""
    return {name: tf.add_n([each[name] for each in counts]) for name in counts[0]}

"""Takes a step with tables and variables in this process: by the tables and Keras themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from embedps.engine.steps.interface import RowGradients, StepExchange, StepInputs, StepParts
from embedps.engine.steps.unit_parts import Step
from embedps.tables.activations import Ids

STEPS_AHEAD = 4


class LocalExchange(StepExchange[StepInputs]):
    """Exchanges with tables and variables in this process.

    If the coldest rows are on disk, those of the next steps are read while a step computes.
    """

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts)
        self._network = parts.model.model
        self._optimizer = parts.optimizer
        if self.collection.has_disk:
            self.steps_per_iteration = STEPS_AHEAD

    def read_ahead(self, ids: Mapping[str, Ids]) -> None:
        """Begins to read the rows that are on disk."""
        if self.collection.has_disk:
            self.collection.read_ahead(ids)

    def begin(self, ids: Mapping[str, Ids], step: Step) -> StepInputs:
        """Looks up the rows; the weights are the variables themselves."""
        return StepInputs(
            lookup=self.collection.lookup(ids, insert=True, step=step.number),
            weights=list(self._network.trainable_variables),
            number=step.number,
            learning_rate=step.learning_rate,
        )

    def end(
        self,
        inputs: StepInputs,
        row_gradients: RowGradients,
        gradients: Sequence[tf.Tensor | None],
    ) -> None:
        """Updates the rows, and the variables through Keras."""
        self.collection.update(
            inputs.lookup,
            row_gradients,
            learning_rate=inputs.learning_rate,
            step=inputs.number,
        )
        self._optimizer.apply_gradients(zip(gradients, inputs.weights, strict=True))

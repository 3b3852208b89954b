"""A model in memory that scores requests, and that deltas bring from one manifest to the next."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.follow import Advance
from embedps.checkpoint.format.manifest import Manifest
from embedps.data.dataset import Dataset
from embedps.engine.checkpoint_restore import check_tables, read_values, stage_rows
from embedps.engine.model_signature import check_signature
from embedps.engine.recommender import Recommender
from embedps.errors import EmbedpsError
from embedps.evaluation.loaded_model import LoadedModel
from embedps.serving.server.batcher import Answer
from embedps.serving.server.request_error import RequestError
from embedps.serving.server.requests import Request, RequestFormat

_WARM_UP_ROWS = (1, 100)


class LiveModel(LoadedModel):
    """Rows and network of one manifest. It gives the predictions of `embedps.load`, bit for bit.

    Attributes:
      manifest: of the rows and the network.
      format: of its requests.
    """

    def __init__(
        self,
        recommender: Recommender,
        dataset: Dataset,
        directory: CheckpointDirectory,
        manifest: Manifest,
        *,
        seed: int = 0,
    ) -> None:
        """Loads a manifest, and scores a few records, so that the first request does not wait.

        Raises:
          UsageError: the model has no call.
          CorruptCheckpointError: a file is absent, or differs from what was written.
          DimMismatchError: the checkpoint is of another model.
        """
        try:
            super().__init__(recommender, dataset, directory, manifest, seed=seed)
        except EmbedpsError:
            if hasattr(self, "_collection"):
                self.close()  # a part of the rows
            raise
        self.manifest = manifest
        self._is_whole = True
        self.format = RequestFormat(self._model.output_columns, missing_id=recommender.missing_id)

        def scored(*arguments: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._outputs(self.format.columns(*arguments))

        function = tf.function(scored, input_signature=self.format.signature())
        self._scored = function.get_concrete_function()
        self._assign = self._make_assign()
        self._assign(*self._model.named_variables.values())
        for rows in _WARM_UP_ROWS:
            self.score(self.format.zeros(rows))

    def _make_assign(self) -> Callable[..., None]:
        """Makes a function that sets the network's variables, in one call."""
        variables = list(self._model.named_variables.values())

        def assign(*values: tf.Tensor) -> None:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

        specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
        return tf.function(assign, input_signature=specs).get_concrete_function()  # type: ignore[no-any-return]

    @property
    def output_specs(self) -> dict[str, tf.TensorSpec]:
        """The predictions by name."""
        return dict(self._scored.structured_outputs)

    def score(self, request: Request) -> Answer:
        """Scores records; not while `prepare`'s function runs."""
        if not self._is_whole:
            raise RequestError("UNAVAILABLE", "the rows are read again after an error: ask later")
        found = self._scored(*map(tf.constant, request.arguments()))
        outputs = {name: value.numpy() for name, value in found.items()}
        return Answer(number=self.manifest.number, outputs=outputs)

    def prepare(self, advance: Advance) -> Callable[[], None]:
        """Reads and checks what leads to a manifest; nothing changes yet.

        Args:
          advance: no reset.

        Returns:
          A function that applies it. It must not run beside `score`.

        Raises:
          CorruptCheckpointError: a file is absent, or differs from what was written.
          DimMismatchError: the checkpoint is of another model.
        """
        manifest, directory = advance.manifest, self._directory
        check_tables(manifest, self._collection.tables)
        check_signature(manifest, self._signature)
        if manifest.dense is not None:
            directory.check_content(manifest, (manifest.dense,))
        variables = self._model.named_variables
        found = [value for _, value in read_values(directory, manifest, variables)]
        values = [tf.constant(value) for value in found]
        staged = stage_rows(self._collection, directory, advance.saves)

        def apply() -> None:
            self._is_whole = False
            for save in staged:
                save.apply()
            self._assign(*values)
            self.manifest, self.number = manifest, manifest.number
            self._is_whole = True

        return apply

    @property
    def is_whole(self) -> bool:
        """Whether rows and network are of one manifest; not if a change of them failed."""
        return self._is_whole

    def close(self) -> None:
        """Frees the rows."""
        self._collection.drop()

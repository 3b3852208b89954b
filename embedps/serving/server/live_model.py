"""A model in memory that scores requests, and that deltas bring from one manifest to the next."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.follow import Advance
from embedps.checkpoint.format.manifest import Manifest
from embedps.console.tf_logging import op_error_text
from embedps.data.arrow_errors import naming
from embedps.data.dataset import Dataset
from embedps.engine.checkpoint_restore import check_tables, read_values, stage_rows
from embedps.engine.model_signature import check_signature
from embedps.engine.recommender import Recommender
from embedps.errors import EmbedpsError
from embedps.evaluation.loaded_model import LoadedModel
from embedps.features.transforms import Transforms
from embedps.serving.server.batcher import Answer
from embedps.serving.server.graph_call import GraphCall
from embedps.serving.server.ivf_index import SAMPLE_QUERIES
from embedps.serving.server.live_items import QUERY, LiveItems, ranks_items
from embedps.serving.server.made_columns import EXAMPLES, RAW, of_examples, of_raw
from embedps.serving.server.ranking import Ranking
from embedps.serving.server.request_error import RequestError, invalid
from embedps.serving.server.request_reader import RequestReader
from embedps.serving.server.requests import Request, RequestFormat, pad
from embedps.serving.unknown_queries import UNKNOWN
from embedps.tables.tiered import Tiered

_WARM_UP_ROWS = (1, 100)


@dataclasses.dataclass(frozen=True)
class PreparedChange:
    """What leads to a manifest, read and checked.

    Attributes:
      take: makes the model that of the manifest; not beside `score`, `encode` and `rank`.
      settle: moves the rows into the tables after that, beside them, before the next `prepare`.
    """

    take: Callable[[], None]
    settle: Callable[[], None]


class LiveModel(LoadedModel):
    """Rows and network of one manifest. It gives the predictions of `embedps.load`, bit for bit.

    Attributes:
      manifest: of the rows and the network.
      format: of its requests.
      reader: of usual requests in that format; None if it has lists.
      made: formats of requests that its columns are made of, by signature.
      items: what it ranks for queries; None if it ranks nothing.
    """

    def __init__(
        self,
        recommender: Recommender,
        dataset: Dataset,
        directory: CheckpointDirectory,
        manifest: Manifest,
        *,
        ranking: Ranking = Ranking(),  # noqa: B008  frozen
        transforms: Transforms | None = None,
        seed: int = 0,
        memory: Tiered | None = None,
    ) -> None:
        """Loads a manifest, and scores a few records, so that the first request does not wait.

        Args:
          dataset: whose columns it gets.
          manifest: to load.
          ranking: how a retrieval model ranks its items.
          transforms: the dataset's `embedps.Transforms`, to take raw values too.
          memory: for the rows, if those used least go to disk.

        Raises:
          UsageError: the model has no call, or a transform has no twin in TensorFlow.
          CorruptCheckpointError: a file is absent, or differs from what was written.
          DimMismatchError: the checkpoint is of another model.
        """
        self.items: LiveItems | None = None
        try:
            super().__init__(recommender, dataset, directory, manifest, seed=seed, memory=memory)
        except EmbedpsError:
            if hasattr(self, "_collection"):
                self.close()  # a part of the rows
            raise
        self.manifest = manifest
        self._is_whole = True
        columns, missing_id = self._model.output_columns, recommender.missing_id
        self.format = RequestFormat(columns, missing_id=missing_id)
        self.reader: RequestReader | None = None
        if not self.format.lists:
            self.reader = RequestReader(self.format.floats, self.format.integers)
        self.made = {EXAMPLES: of_examples(self.format, columns, missing_id=missing_id)}
        if transforms is not None:
            raw = of_raw(self.format, columns, transforms, missing_id=missing_id)
            self.made[RAW] = raw

        def scored(*arguments: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._padded_outputs(self.format.columns(*arguments))

        function = tf.function(scored, input_signature=self.format.signature())
        self._scored = function.get_concrete_function()
        self._call = GraphCall(self._scored, pad(self.format.zeros(1)).arguments())
        self._variables = self._model.named_variables  # to find their names takes 2 ms
        self._assign = self._make_assign()
        self._assign(*self._variables.values())
        for rows in _WARM_UP_ROWS:
            self.score(self.format.zeros(rows))
        if ranks_items(self._model):
            self.items = self._load_items(dataset, ranking)

    def _load_items(self, dataset: Dataset, ranking: Ranking) -> LiveItems:
        sample = sample_records(dataset, self.columns)
        items = LiveItems(
            self._model, self._collection, lambda: self.predict(sample)[QUERY], ranking
        )
        form = items.format.query

        def queried(*arguments: tf.Tensor) -> dict[str, tf.Tensor]:
            columns = form.columns(*arguments)
            vectors = self._outputs(columns)[QUERY]
            unknown = items.query_ids.unknown(columns, tf.shape(vectors, tf.int64)[0])
            return {QUERY: vectors, UNKNOWN: unknown}

        function = tf.function(queried, input_signature=form.signature()).get_concrete_function()
        self._query_spec = function.structured_outputs[QUERY]
        self._queried = GraphCall(function, form.zeros(1).arguments())
        for rows in _WARM_UP_ROWS:
            self._rank(items, items.format.zeros(rows))
        return items

    def _make_assign(self) -> Callable[..., None]:
        """Makes a function that sets the network's variables, in one call."""
        variables = list(self._variables.values())

        def assign(*values: tf.Tensor) -> None:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

        specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
        return tf.function(assign, input_signature=specs).get_concrete_function()  # type: ignore[no-any-return]

    @property
    def output_specs(self) -> dict[str, tf.TensorSpec]:
        """The predictions by name."""
        return dict(self._scored.structured_outputs)

    @property
    def top_k_specs(self) -> dict[str, tf.TensorSpec]:
        """What `rank` gives, by name."""
        id_dtype = tf.int64 if self.items is None else self.items.id_dtype
        dtypes = {"ids": id_dtype, "scores": tf.float32}
        specs = {name: tf.TensorSpec([None, None], dtype) for name, dtype in dtypes.items()}
        return specs | {UNKNOWN: tf.TensorSpec([None], tf.bool)}

    @property
    def query_specs(self) -> dict[str, tf.TensorSpec]:
        """What `encode` gives, by name."""
        return {QUERY: self._query_spec}

    def score(self, request: Request) -> Answer:
        """Scores records; not beside `PreparedChange.take`."""
        # In NumPy: in the function, it would be ten operations per column.
        padded = pad(request)
        with self._whole_rows():
            found = self._call(padded.arguments(), rows=padded.rows)
        outputs = {name: value.numpy()[: request.rows] for name, value in found.items()}
        return Answer(number=self.manifest.number, outputs=outputs)

    def encode(self, request: Request) -> Answer:
        """Computes the vectors of queries; not beside `PreparedChange.take`."""
        with self._whole_rows():
            vectors = self._queried(request.arguments(), rows=request.rows)[QUERY].numpy()
        return Answer(number=self.manifest.number, outputs={QUERY: vectors})

    def rank(self, request: Request) -> Answer:
        """Finds the best items of queries; not beside `PreparedChange.take`."""
        if self.items is None:
            raise invalid("the model ranks no items")
        with self._whole_rows():
            return self._rank(self.items, request)

    @contextmanager
    def _whole_rows(self) -> Iterator[None]:
        """Looks rows up. A spill file that lost some fails the request: they must be read again."""
        if not self._is_whole:
            raise RequestError("UNAVAILABLE", "the rows are read again after an error: ask later")
        try:
            yield
        except tf.errors.DataLossError as error:
            self._is_whole = False
            raise RequestError("UNAVAILABLE", op_error_text(error.message)) from error

    def _rank(self, items: LiveItems, request: Request) -> Answer:
        parts = items.format.parts(request)
        found = self._queried(parts.query.arguments(), rows=parts.query.rows)
        outputs = items.best(found[QUERY], found[UNKNOWN].numpy(), parts)
        return Answer(number=self.manifest.number, outputs=outputs)

    def prepare(self, advance: Advance) -> PreparedChange:
        """Reads and checks what leads to a manifest; nothing changes yet.

        Args:
          advance: no reset.

        Raises:
          CorruptCheckpointError: a file is absent, or differs from what was written.
          DimMismatchError: the checkpoint is of another model.
        """
        manifest, directory = advance.manifest, self._directory
        tables, dim = self._collection.tables, self._model.embedding_dim
        check_tables(manifest, tables, embedding_dim=dim)
        check_signature(manifest, self._signature)
        if manifest.dense is not None:
            directory.check_content(manifest, (manifest.dense,))
        found = read_values(directory, manifest, self._variables)
        values = [tf.constant(value) for _, value in found]
        staged = stage_rows(self._collection, directory, advance.saves)
        take_items = None if self.items is None else self.items.prepare(staged, found)

        def take() -> None:
            self._is_whole = False
            staged.show()
            self._assign(*values)
            if take_items is not None:
                take_items()
            self.manifest, self.number = manifest, manifest.number
            self._is_whole = True

        return PreparedChange(take=take, settle=staged.apply)

    def refresh(self) -> None:
        """Takes what was built beside; not beside `prepare` and its change."""
        if self.items is not None:
            self.items.refresh()

    @property
    def is_whole(self) -> bool:
        """Whether rows and network are of one manifest; not if a change of them failed."""
        return self._is_whole

    def close(self) -> None:
        """Frees the rows."""
        if self.items is not None:
            self.items.close()
        self._collection.drop()


def sample_records(dataset: Dataset, columns: Sequence[str]) -> pa.Table:
    """Reads some records; of the split that is not trained on, if there is one."""
    split = "eval" if "eval" in dataset.splits else next(iter(dataset.splits))
    path = dataset.paths(split)[0]
    with naming(path), pq.ParquetFile(path) as file:
        batches = file.iter_batches(SAMPLE_QUERIES, columns=list(columns))
        return pa.Table.from_batches([next(batches)])

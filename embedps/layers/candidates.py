"""The candidates of a retrieval task, which TFRS' corpus metrics rank."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps.errors import UsageError
from embedps.layers.own_tables import without_learning

Encoded = tuple[tf.Tensor, tf.Tensor]
"""Candidates: float32 [candidates, dim], and the identifier of each."""


def row_buffer(rows: int, dim: int) -> npt.NDArray[np.float32]:
    """Makes an array to fill, float32 [rows, dim], which `as_tensor` shares with TensorFlow."""
    alignment = 64  # TensorFlow copies memory of less
    raw = np.empty(rows * dim * 4 + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + rows * dim * 4].view(np.float32).reshape(rows, dim)


def as_tensor(buffer: npt.NDArray[Any]) -> tf.Tensor:
    """Makes a tensor of aligned memory without a copy; the array must not change any more."""
    return tf.experimental.dlpack.from_dlpack(buffer.__dlpack__())


class Candidates(tfrs.layers.factorized_top_k.TopK):
    """Candidates that a model encodes, for `tfrs.metrics.FactorizedTopK(candidates=...)`.

    An engine encodes them once per evaluation, with the rows of that checkpoint, and skips the
    metric in training. In Keras mode each use encodes them, as TFRS' Streaming does.
    """

    def __init__(
        self,
        batches: tf.data.Dataset,
        encode: Callable[[Any], tf.Tensor],
        *,
        identifier: str | None = None,
        k: int = 10,
        **kwargs: Any,
    ) -> None:
        """Declares the candidates.

        Args:
          batches: of the candidates, dicts of columns that `encode` takes.
          encode: gives the candidates' embeddings, float32 [batch, dim]: the model's tower.
          identifier: the column whose values are returned for the best candidates; by default,
            they are the candidates' places.
          k: how many are returned by default.
          kwargs: those of `tf.keras.Model`.

        Raises:
          UsageError: the batches are no dicts, or have no such column.
        """
        super().__init__(k=k, **kwargs)
        spec = batches.element_spec
        if not isinstance(spec, dict) or (identifier is not None and identifier not in spec):
            wanted = "columns" if identifier is None else f"column {identifier!r}"
            raise UsageError(
                f"the candidates' batches must be dicts with {wanted} but are {spec}: map the "
                "tf.data.Dataset to {'column': values}"
            )
        self._batches = batches
        self._encode = encode
        self._identifier = identifier
        self._provided = threading.local()

    def index(self, candidates: tf.Tensor, identifiers: tf.Tensor | None = None) -> Candidates:
        """Refuses: the candidates are those that were declared."""
        raise UsageError("embedps.Candidates encodes the candidates that it was made with")

    def is_exact(self) -> bool:
        """Tells that all candidates are compared."""
        return True

    def call(self, queries: Any, k: int | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds the best candidates.

        Args:
          queries: float32 [batch, dim].
          k: how many.

        Returns:
          Scores, float32 [batch, k], and identifiers [batch, k]. If there are fewer candidates
          than k, the last scores are the least float.
        """
        k = self._k if k is None else k
        encoded = getattr(self._provided, "encoded", None)
        if encoded is None:
            return self._compare_batches(queries, k)
        embeddings, identifiers = encoded
        scores = tf.matmul(queries, embeddings, transpose_b=True)
        missing = tf.maximum(k - tf.shape(scores)[1], 0)
        scores = tf.pad(scores, [[0, 0], [0, missing]], constant_values=tf.float32.min)
        padding = tf.zeros([missing], identifiers.dtype)
        if identifiers.dtype == tf.string:
            padding = tf.fill([missing], "")
        identifiers = tf.concat([identifiers, padding], axis=0)
        values, places = tf.math.top_k(scores, k=k)
        return values, tf.gather(identifiers, places)

    def encoded(self, encode: Callable[[Any], tf.Tensor] | None = None) -> Encoded:
        """Encodes all candidates.

        Args:
          encode: calls the model's tower; by default it is the tower.
        """
        buffer, identifiers, place = None, [], 0
        for found, ids in self.encode_batches(encode):
            if buffer is None:  # one buffer: of millions of candidates there is room for one
                buffer = row_buffer(self._count(), found.shape[1])
            end = place + int(found.shape[0])
            buffer[place:end] = found.numpy()
            identifiers.append(ids)
            place = end
        if buffer is None:
            raise UsageError("the candidates' batches must have a candidate but have none")
        return as_tensor(buffer), tf.concat(identifiers, axis=0)

    def encode_batches(self, encode: Callable[[Any], tf.Tensor] | None = None) -> Iterator[Encoded]:
        """Encodes all candidates, a batch of them at a time; see `encoded`."""
        encode = self._encode if encode is None else encode
        place = 0
        for batch in self._batches:
            found = encode(batch)
            end = place + int(found.shape[0])
            ids = tf.range(place, end, dtype=tf.int64)
            yield found, ids if self._identifier is None else batch[self._identifier]
            place = end

    def encoded_now(self, dim: int) -> Encoded:
        """Gives all candidates, as provided in this thread; else it encodes them.

        Args:
          dim: of the embeddings.
        """
        provided: Encoded | None = getattr(self._provided, "encoded", None)
        if provided is not None:
            return provided
        with without_learning():
            if tf.executing_eagerly():
                return self.encoded()
            kind = self.encoded_specs[1].dtype

            def add(state: Any, batch: Any) -> Any:
                embeddings, ids = state
                with without_learning():
                    found = self._encode(batch)
                place = tf.size(ids, tf.int64)
                more = tf.range(place, place + tf.shape(found, tf.int64)[0])
                more = more if self._identifier is None else batch[self._identifier]
                return tf.concat([embeddings, found], 0), tf.concat([ids, more], 0)

            none = (
                tf.zeros([0, dim]),
                tf.zeros([0], kind) if kind.is_integer else tf.fill([0], ""),
            )
            return tuple(self._batches.reduce(none, add))

    def _count(self) -> int:
        """Counts the candidates."""

        def add(count: tf.Tensor, batch: Any) -> tf.Tensor:
            value = next(iter(batch.values()))
            ragged = isinstance(value, tf.RaggedTensor)
            return count + (value.nrows() if ragged else tf.shape(value, tf.int64)[0])

        return int(self._batches.reduce(tf.zeros([], tf.int64), add))

    @property
    def identifier(self) -> str | None:
        """The column whose values identify candidates; None if their places do."""
        return self._identifier

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the batches."""
        return tuple(self.column_specs)

    @property
    def column_specs(self) -> dict[str, Any]:
        """The specs of the batches' columns."""
        return dict(self._batches.element_spec)

    @property
    def batches(self) -> tf.data.Dataset:
        """The batches of columns."""
        return self._batches

    @property
    def tower(self) -> Callable[[Any], tf.Tensor]:
        """What encodes the candidates."""
        return self._encode

    @property
    def encoded_specs(self) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """The specs of what `encoded` returns."""
        kind = tf.int64
        if self._identifier is not None:
            kind = self._batches.element_spec[self._identifier].dtype
        return tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([None], kind)

    @contextmanager
    def providing(self, encoded: Encoded) -> Iterator[None]:
        """Makes calls in this thread compare with these candidates within the block."""
        self._provided.encoded = encoded
        try:
            yield
        finally:
            self._provided.encoded = None

    def _compare_batches(self, queries: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds the best candidates, a batch of them at a time."""
        kind = self.encoded_specs[1].dtype
        shape = [tf.shape(queries)[0], k]
        none = tf.fill(shape, "") if kind == tf.string else tf.zeros(shape, kind)
        least = tf.fill(shape, tf.float32.min)

        def merge(state: Any, batch: Any) -> Any:
            scores, identifiers, place = state
            with without_learning():
                more = tf.matmul(queries, self._encode(batch), transpose_b=True)
            rows = tf.shape(more, tf.int64)[1]
            ids = tf.range(place, place + rows)
            if self._identifier is not None:
                ids = batch[self._identifier]
            ids = tf.repeat(ids[None], tf.shape(queries)[0], axis=0)
            scores, places = tf.math.top_k(tf.concat([scores, more], axis=1), k=k)
            identifiers = tf.concat([identifiers, ids], axis=1)
            return scores, tf.gather(identifiers, places, batch_dims=1), place + rows

        start = (least, none, tf.zeros([], tf.int64))
        scores, identifiers, _ = self._batches.reduce(start, merge)
        return scores, identifiers

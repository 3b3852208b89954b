"""Metrics over a corpus of candidates, such as FactorizedTopK: left out in steps, then scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from embedps.engine.batch_free import batch_free
from embedps.engine.row_padding import pad
from embedps.errors import UsageError
from embedps.layers.candidates import Candidates
from embedps.layers.embeddings import Embeddings
from embedps.layers.retrieval_metrics import RetrievalMetrics
from embedps.tables.collection import EmbeddingCollection


def corpus_metrics(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    """Lists the metrics over candidates of a model, its own and those of its retrieval tasks."""
    tasks = _retrieval_tasks(model)
    return [*_own_metrics(model), *(m for task in tasks for m in task._factorized_metrics or ())]


def candidates_of(model: tf.keras.Model) -> list[Candidates]:
    """Lists what those metrics rank.

    Raises:
      UsageError: a metric ranks something that an engine cannot encode with a checkpoint's rows.
    """
    found: dict[int, Candidates] = {}
    for metric in corpus_metrics(model):
        ranked = getattr(metric, "_candidates", None)
        if not isinstance(ranked, Candidates):
            raise UsageError(
                f"metric {metric.name!r} ({type(metric).__name__}) must rank embedps.Candidates("
                f"batches, tower), which an engine encodes with each checkpoint, but ranks a "
                f"{type(ranked).__name__}"
            )
        found[id(ranked)] = ranked
    return list(found.values())


def encoder(
    candidates: Candidates,
    embeddings: Embeddings,
    collection: EmbeddingCollection,
    *,
    in_any_batch: bool = False,
) -> Callable[[Any], tf.Tensor]:
    """Makes a function that encodes a batch of candidates with the present rows and variables.

    Args:
      candidates: what it encodes.
      collection: has the rows.
      in_any_batch: a candidate's vector has the same bits in any batch.
    """
    features = {feature.name for feature in embeddings.features}

    def encoded(batch: Any) -> tf.Tensor:
        ids = {name: value for name, value in batch.items() if name in features}
        found = collection.lookup(ids, insert=False, partial=True)
        with embeddings.providing(collection.combine(found), ids):
            return candidates.tower(batch)

    @tf.function(reduce_retracing=True)
    def encode(batch: Any) -> tf.Tensor:
        if not in_any_batch:
            return encoded(batch)
        first = next(iter(batch.values()))
        rows = first.nrows(tf.int64) if hasattr(first, "nrows") else tf.shape(first, tf.int64)[0]
        padded = {name: pad(value, rows) for name, value in batch.items()}
        return batch_free(encoded)(padded)[:rows]

    return encode  # type: ignore[no-any-return]


@contextmanager
def ranking(
    model: tf.keras.Model, candidates: Sequence[Candidates], encoded: Sequence[tf.Tensor]
) -> Iterator[None]:
    """Makes metrics rank encoded candidates within the block; without any, they count nothing.

    Args:
      model: whose metrics they are.
      encoded: what `StepModel.encode_candidates` returned; empty in a step.
    """
    with ExitStack() as stack:
        if encoded:
            for i, each in enumerate(candidates):
                stack.enter_context(each.providing((encoded[2 * i], encoded[2 * i + 1])))
        else:
            stack.enter_context(_without(_retrieval_tasks(model)))
            for metric in _own_metrics(model):
                stack.enter_context(metric.paused())
        yield


@contextmanager
def _without(tasks: Sequence[Any]) -> Iterator[None]:
    before = [task._factorized_metrics for task in tasks]
    for task in tasks:
        task._factorized_metrics = []
    try:
        yield
    finally:
        for task, metrics in zip(tasks, before, strict=True):
            task._factorized_metrics = metrics


def _own_metrics(model: tf.keras.Model) -> list[RetrievalMetrics]:
    return [m for m in model.metrics if isinstance(m, RetrievalMetrics)]


def _retrieval_tasks(model: tf.keras.Model) -> list[Any]:
    import tensorflow_recommenders as tfrs

    return [m for m in model.submodules if isinstance(m, tfrs.tasks.Retrieval)]

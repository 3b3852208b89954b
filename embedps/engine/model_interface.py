"""What the engine asks of a user's model: its loss, its outputs, and its Embeddings layer."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from embedps.data.columns import Columns
from embedps.errors import UsageError
from embedps.layers.embeddings import Embeddings


def find_embeddings(model: tf.keras.Model) -> Embeddings:
    """Finds a model's only Embeddings layer.

    Raises:
      UsageError: it has none, or several.
    """
    found = [m for m in (model, *model.submodules) if isinstance(m, Embeddings)]
    if len(found) != 1:
        raise UsageError(
            f"a model must have one embedps.Embeddings layer, in an attribute, but "
            f"{type(model).__name__} has {len(found)}: declare all features in one layer"
        )
    return found[0]


def has_own_loss(model: tf.keras.Model) -> bool:
    """Tells whether a model has TFRS' `compute_loss(features, training)`, and not Keras' own."""
    own = type(model).compute_loss
    if own is tf.keras.Model.compute_loss:
        return False
    parameters = list(inspect.signature(own).parameters)
    return parameters[2:3] == ["training"]


def check_model(model: Any) -> None:
    """Checks that the engine can train a model.

    Raises:
      UsageError: it is not a Keras model, or has no loss.
    """
    if not isinstance(model, tf.keras.Model):
        kind = type(model)
        raise UsageError(
            "a recommender's build must return a tf.keras.Model (Keras 2) but returned a "
            f"{kind.__module__}.{kind.__qualname__}"
        )
    if not has_own_loss(model) and getattr(model, "compiled_loss", None) is None:
        raise UsageError(
            f"{type(model).__name__} has no loss: give it compute_loss(self, features, "
            "training=False), as tfrs.Model has, or compile it with a loss"
        )


def step_loss(
    model: tf.keras.Model, batch: Mapping[str, Any], *, targets: Columns, training: bool
) -> tf.Tensor:
    """Computes what a step minimizes: the model's loss, and the losses that its layers add.

    Args:
      model: as `check_model` takes it.
      batch: the columns.
      targets: has the labels, which a compiled model predicts, and their weights.
      training: as Keras has it.

    Returns:
      float32 scalar.
    """
    model._clear_losses()
    with one_replica():
        if has_own_loss(model):
            loss = model.compute_loss(dict(batch), training=training)
            # The model's own, and those of parts that it called.
            added = [tf.reduce_sum(tf.cast(each, tf.float32)) for each in model.losses]
            return tf.add_n([tf.cast(tf.reduce_sum(loss), tf.float32), *added])
        given = _inputs(model, {k: v for k, v in batch.items() if k not in targets.targets})
        predicted = model(given, training=training)
        labels, weights, present = targets.targets_of(batch)
        wanted = _targets(model, labels, predicted)
        weighed = _like(wanted, weights) if weights else None
        loss = model.compute_loss(given, wanted, predicted, weighed)
        with _masked(predicted, present):
            model.compute_metrics(given, wanted, predicted, weighed)
        return tf.cast(loss, tf.float32)


def _like(wanted: Any, weights: Mapping[str, Any]) -> Any:
    """Gives the weights of a compiled model's targets: one for all, or one for each."""
    if isinstance(wanted, Mapping):
        return {name: weights.get(name) for name in wanted}
    return next(iter(weights.values()))


@contextmanager
def _masked(predicted: Any, present: Mapping[str, Any]) -> Iterator[None]:
    """Leaves examples without a label out of Keras' metrics within the block."""
    named = predicted if isinstance(predicted, Mapping) else dict.fromkeys(present, predicted)
    masked = [named[name] for name in present if hasattr(named.get(name), "dtype")]
    for name, there in present.items():
        if hasattr(named.get(name), "dtype"):
            named[name]._keras_mask = there
    try:
        yield
    finally:
        for each in masked:
            del each._keras_mask


def _targets(model: tf.keras.Model, labels: dict[str, Any], predicted: Any) -> Any:
    """Gives a compiled model's targets: the only label, or those that the model predicts.

    Raises:
      UsageError: the model predicts no label.
    """
    if len(labels) == 1:
        return next(iter(labels.values()))
    outputs = predicted if isinstance(predicted, Mapping) else getattr(model, "output_names", None)
    wanted = {name: value for name, value in labels.items() if name in (outputs or ())}
    if not wanted:
        raise UsageError(
            f"{type(model).__name__} must predict a label: the dataset has "
            f"{', '.join(labels) or 'none'}, the model's outputs are "
            f"{', '.join(outputs or ()) or 'not named'}; return a dict by label, or name one label "
            "in the recommender's columns"
        )
    single = not isinstance(predicted, Mapping | list | tuple)
    return next(iter(wanted.values())) if single else wanted


def outputs(
    model: tf.keras.Model, batch: Mapping[str, Any], targets: Collection[str]
) -> dict[str, tf.Tensor]:
    """Computes a model's predictions: what its call returns, by name; "score" if it is a tensor.

    A functional model's outputs have the names of their layers.

    Args:
      model: as `check_model` takes it.
      batch: the columns.
      targets: labels and weights, which a compiled model's call does not get.
    """
    if not has_own_loss(model):
        batch = {name: value for name, value in batch.items() if name not in targets}
    found = model(_inputs(model, batch), training=False)
    if isinstance(found, list | tuple):
        names = getattr(model, "output_names", None) or [f"score_{i}" for i in range(len(found))]
        return dict(zip(names, found, strict=True))
    return dict(found) if isinstance(found, Mapping) else {"score": found}


def _inputs(model: tf.keras.Model, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Gives the columns that a functional model names, or all."""
    named = getattr(model, "_nested_inputs", None)
    if named is not None and not isinstance(named, Mapping):  # tensors, which their layers name
        named = model.input_names if set(model.input_names) <= set(batch) else None
    return {k: v for k, v in batch.items() if named is None or k in named}


@contextmanager
def one_replica() -> Iterator[None]:
    """Lets losses average over the batch within the block.

    Keras refuses to within tf.distribute, as it does not know the global batch. A step is one
    replica: its batch is the global one.
    """
    kind = tf.keras.losses.Loss
    before = kind._get_reduction

    def reduction(self: Any) -> str:
        auto = self.reduction == tf.keras.losses.Reduction.AUTO
        return str(tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE if auto else self.reduction)

    kind._get_reduction = reduction
    try:
        yield
    finally:
        kind._get_reduction = before

"""Names of variables in checkpoints: where a model or an optimizer holds them.

Keras' own names count the layers that the process has made, so they differ from run to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedps.engine.dense_optimizer import RAW_OPTIMIZERS, variables_of


def name_variables(
    model: tf.keras.Model, variables: Sequence[tf.Variable]
) -> dict[str, tf.Variable]:
    """Names a model's variables by their attributes, such as "deep/layers/0/kernel".

    Args:
      variables: those to name; their order is kept.

    Returns:
      The variables by name. One that no attribute leads to is "variable/" and its place.
    """
    paths = {id(v): path for path, v in _reachable(model)}
    return {paths.get(id(v), f"variable/{i}"): v for i, v in enumerate(variables)}


def name_optimizer(optimizer: Any, named: Mapping[str, tf.Variable]) -> dict[str, tf.Variable]:
    """Names an optimizer's variables by the slot and the variable that it is of.

    Args:
      optimizer: a Keras optimizer; its variables are made.

    Returns:
      The variables that a checkpoint holds by name, such as "optimizer/m/deep/layers/0/kernel".
    """
    slots = {id(slot): f"{kind}/{name}" for kind, name, slot in _slots(optimizer, named)}
    slots[id(optimizer.iterations)] = "iterations"
    return {f"optimizer/{slots.get(id(v), i)}": v for i, v in enumerate(variables_of(optimizer))}


def _slots(optimizer: Any, named: Mapping[str, tf.Variable]) -> list[tuple[str, str, tf.Variable]]:
    if isinstance(optimizer, RAW_OPTIMIZERS):
        return [
            (kind, name, optimizer.get_slot(variable, kind))
            for kind in optimizer.get_slot_names()
            for name, variable in named.items()
            if variable.trainable
        ]
    places = {
        name: optimizer._index_dict[optimizer._var_key(variable)]
        for name, variable in named.items()
        if optimizer._var_key(variable) in optimizer._index_dict
    }
    return [
        (kind.strip("_"), name, slots[place])
        for kind, slots in vars(optimizer).items()
        if kind != "_variables" and isinstance(slots, list | tuple)
        for name, place in places.items()
        if place < len(slots) and isinstance(slots[place], tf.Variable)
    ]


def _reachable(model: tf.keras.Model) -> list[tuple[str, tf.Variable]]:
    """Lists the variables that attributes lead to, by the shortest path first."""
    found: list[tuple[str, tf.Variable]] = []
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", model)]
    for path, holder in waiting:  # which grows meanwhile
        if isinstance(holder, tf.Variable):
            found.append((path, holder))
            continue
        for name, child in tf.train.TrackableView.children(holder).items():
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append((f"{path}/{name}" if path else name, child))
    return found

"""Names of variables in checkpoints: where a model or an optimizer holds them.

Keras' own names count the layers that the process has made, so they differ from run to run. A
variable that a strategy's `variable_partitioner` divides has one name, and is stored whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedps.engine.dense_optimizer import RAW_OPTIMIZERS, variables_of

_Partitioned: Any = tf.__internal__.distribute.ShardedVariable


def name_variables(
    model: tf.keras.Model, variables: Sequence[tf.Variable]
) -> dict[str, tf.Variable]:
    """Names a model's variables by their attributes, such as "deep/layers/0/kernel".

    Args:
      variables: those to name; their order is kept.

    Returns:
      The variables by name. One that no attribute leads to is "variable/" and its place. A
      partitioned one stands for its parts.
    """
    paths = {id(v): path for path, v in _reachable(model)}
    return {paths.get(id(v), f"variable/{i}"): v for i, v in enumerate(_wholes(variables))}


def name_optimizer(optimizer: Any, named: Mapping[str, tf.Variable]) -> dict[str, tf.Variable]:
    """Names an optimizer's variables by the slot and the variable that it is of.

    Args:
      optimizer: a Keras optimizer; its variables are made.

    Returns:
      The variables that a checkpoint holds by name, such as "optimizer/m/deep/layers/0/kernel".
    """
    found = _slots(optimizer, named)
    slots = {id(slot): f"{kind}/{name}" for kind, name, slot in found}
    slots[id(optimizer.iterations)] = "iterations"
    variables = _wholes(variables_of(optimizer))
    return {f"optimizer/{slots.get(id(v), i)}": v for i, v in enumerate(variables)}


def _wholes(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    """Lists variables, with a partitioned one in the place of its parts."""
    wholes = [v._sharded_container() if hasattr(v, "_sharded_container") else v for v in variables]
    return list({id(v): v for v in wholes}.values())


def _parts_of(variable: tf.Variable) -> Sequence[tf.Variable]:
    """Lists the parts of a variable that is partitioned; else itself."""
    return variable.variables if isinstance(variable, _Partitioned) else [variable]


def _slots(optimizer: Any, named: Mapping[str, tf.Variable]) -> list[tuple[str, str, tf.Variable]]:
    if isinstance(optimizer, RAW_OPTIMIZERS):
        return [
            (kind, name, _join([optimizer.get_slot(part, kind) for part in _parts_of(variable)]))
            for kind in optimizer.get_slot_names()
            for name, variable in named.items()
            if _parts_of(variable)[0].trainable
        ]
    keys = {name: optimizer._var_key(_parts_of(variable)[0]) for name, variable in named.items()}
    places = {
        name: optimizer._index_dict[key]
        for name, key in keys.items()
        if key in optimizer._index_dict
    }
    return [
        (kind.strip("_"), name, *_wholes([slots[place]]))
        for kind, slots in vars(optimizer).items()
        if kind != "_variables" and isinstance(slots, list | tuple)
        for name, place in places.items()
        if place < len(slots) and isinstance(slots[place], tf.Variable)
    ]


def _join(parts: Sequence[tf.Variable]) -> tf.Variable:
    """Makes one variable of the parts of a slot, for which the raw optimizers have none."""
    return parts[0] if len(parts) == 1 else _Partitioned(parts)


def _reachable(model: tf.keras.Model) -> list[tuple[str, tf.Variable]]:
    """Lists the variables that attributes lead to, by the shortest path first."""
    found: list[tuple[str, tf.Variable]] = []
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", model)]
    for path, holder in waiting:  # which grows meanwhile
        if isinstance(holder, tf.Variable | _Partitioned):
            found.append((path, holder))
            continue
        for name, child in tf.train.TrackableView.children(holder).items():
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append((f"{path}/{name}" if path else name, child))
    return found

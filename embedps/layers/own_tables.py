"""The tables of an Embeddings layer in Keras mode: rows learn in the backward pass."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import tensorflow as tf

from embedps import kernels
from embedps.errors import EmbedpsError, UsageError
from embedps.tables.activations import Activation, Ids
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.image import Image, read_image, write_image
from embedps.tables.lookup_result import LookupResult
from embedps.tables.specs import FeatureSpec, TableSpec, event_secs_of, tables_of

Rate: TypeAlias = float | Callable[[tf.Tensor], tf.Tensor]
"""A learning rate, or a schedule of it over steps, such as one of tf.keras.optimizers.schedules."""

E = TypeVar("E", bound=EmbedpsError)

_live: weakref.WeakSet[OwnTables] = weakref.WeakSet()
"""Tables in Keras mode, for which optimizers are watched."""

_NEVER_APPLIED = -(2**62)
"""Updates since an optimizer applied gradients, if none did so yet: a loop may do without
optimizers."""

_in_thread = threading.local()
"""Of a thread: `scaled`, whether a loss was scaled since the last lookup that learns; `is_frozen`,
whether lookups do not learn."""


def _drop(collection: EmbeddingCollection) -> None:
    """Frees tables, outside of a graph that may be built at the moment.

    The garbage collector may call this while TensorFlow holds that graph's lock: an op in the graph
    would wait for it forever.
    """
    # Servers that are gone have no tables to free.
    with contextlib.suppress(tf.errors.OpError, AttributeError), tf.init_scope():
        collection.drop()


class OwnTables:
    """Tables in this process, of a layer that no engine serves.

    A lookup that learns makes the rows of new ids. Taking its gradient updates its rows, once.

    Attributes:
      collection: the tables.
      anchor: a float32 scalar of 0, a trainable variable without effect: gradients with respect to
        it reach the rows.
      step: how many updates there were, int64 scalar.
      learning_rate: of the rows, float32 scalar; None if it is a schedule.
      is_remote: whether the tables are on servers.
      replaced: how often `write_image` replaced all rows: deltas since before lack that.
    """

    is_remote = False

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        learning_rate: Rate,
        *,
        devices: Sequence[str] = ("/device:CPU:0",),
        container: str = "",
    ) -> None:
        """Makes empty tables.

        Args:
          tables: the tables.
          features: the features.
          learning_rate: of the rows, or a schedule of it over steps.
          devices: of the shards, by default this process.
          container: as of `EmbeddingCollection`, by default a new one.

        Raises:
          UsageError: a table's rows expire by event time, or are frozen for some steps.
        """
        if aged := event_secs_of(tables_of(features, tables)):
            raise mistake(
                f"table {next(iter(aged))!r} has a TimeToLive in event time, which only "
                "embedps.Trainer knows: use steps in Keras mode"
            )
        if frozen := [t.name for t in tables_of(features, tables) if t.frozen_steps]:
            raise mistake(
                f"table {frozen[0]!r} has frozen_steps, which only embedps.Trainer knows: in Keras "
                "mode make it trainable=False"
            )
        kernels.load()
        _watch_loss_scaling()
        _watch_optimizers()
        _watch_counts()
        self.collection = EmbeddingCollection(
            tables,
            features,
            devices=devices,
            container=container or f"embedps-keras-{os.getpid()}-{uuid.uuid4().hex}",
            learning_rate=None if callable(learning_rate) else float(learning_rate),
        )
        weakref.finalize(self, _drop, self.collection)
        self.anchor = tf.Variable(0.0, name="embeddings")
        self._schedule = learning_rate if callable(learning_rate) else None
        self.learning_rate = (
            None if callable(learning_rate) else self._make_rate(float(learning_rate))
        )
        self._make_steps()
        self.replaced = 0
        self._waiting: dict[str, Any] = {}  # features that wait for their gradients, and who asks
        # Per lookup of a step: the updates of its rows since an optimizer applied gradients.
        self._unapplied: dict[tuple[str, ...], tf.Variable] = {}
        _live.add(self)

    @tf.autograph.experimental.do_not_convert
    def look_up(self, ids: Mapping[str, Ids], *, learns: bool) -> dict[str, Activation]:
        """Looks features up.

        Args:
          ids: by feature, as `EmbeddingCollection.lookup` takes them.
          learns: whether new ids get rows, and the rows learn from their gradient.

        Raises:
          UsageError: a feature is looked up a second time before its gradient was taken.
        """
        if not learns or getattr(_in_thread, "is_frozen", False):
            found = self.collection.lookup(ids, insert=False, partial=True)
            return self.collection.combine(found)
        _in_thread.scaled = False
        for name in ids:
            if _is_waiting(self._waiting.get(name)):
                raise mistake(
                    f"feature {name!r} is looked up twice in a step: call the Embeddings layer "
                    "once per feature and step, and pass on what it returns"
                )
        token = Token(tuple(ids))
        found, rows = self._learning_rows(ids, token)
        combined = self.collection.combine(
            found._replace(rows=tf.nest.pack_sequence_as(found.rows, rows))
        )
        return {n: token.noting(n, each) if n in ids else each for n, each in combined.items()}

    def read_image(self) -> Image:
        """Reads all rows, slots and counters, and the step; see `image.read_image`."""
        return read_image(self.collection, step=self.num_steps())

    def write_image(self, image: Image) -> None:
        """Replaces all rows, slots and counters, and the step, by an image's; none if it is empty.

        Raises:
          CorruptCheckpointError: it is no image, or damaged.
          DimMismatchError: it is of other tables.
        """
        if image.size:
            step = write_image(self.collection, image)
        else:
            self.collection.clear()
            step = 0
        self.set_steps(step)
        self.replaced += 1
        self.note_applied()

    def num_steps(self) -> int:
        """Counts the updates."""
        return int(self.step.numpy())

    def set_steps(self, steps: int) -> None:
        """Sets how many updates there were."""
        self.step.assign(steps)

    def size(self, *, is_bytes: bool) -> int:
        """Counts the numbers of the embeddings that the tables hold now, or their bytes."""
        with tf.init_scope():
            rows = self.collection.stats().rows
        return sum(
            rows[t.name] * t.embedding_dim * (tf.as_dtype(t.row_dtype).size if is_bytes else 1)
            for t in self.collection.tables
        )

    def note_applied(self) -> None:
        """Notes that an optimizer applies gradients."""
        for unapplied in self._unapplied.values():
            unapplied.assign(0)

    def _make_rate(self, rate: float) -> tf.Variable:
        return tf.Variable(rate, trainable=False, name="embeddings_rate")

    def _make_steps(self) -> None:
        """Makes what counts the steps."""
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="embeddings_step")

    def _find(self, ids: Mapping[str, Ids], token: Token) -> LookupResult:
        """Looks rows up that will learn."""
        with tf.control_dependencies([self._check_applied(token.names)]):
            step = self.step.read_value()
            return self.collection.lookup(ids, insert=True, step=step, partial=True)

    def _apply(
        self,
        found: LookupResult,
        gradients: Sequence[Any],
        token: Token,
        features: Collection[str] | None,
    ) -> list[tf.Operation]:
        """Applies gradients, of the structure of the rows; of these features only."""
        self._unapplied[token.names].assign_add(1)
        step = self.step.assign_add(1) - 1
        rate = self.learning_rate if self._schedule is None else self._schedule(step)
        rate = tf.cast(rate, tf.float32)
        return self.collection.update(
            found, gradients, learning_rate=rate, step=step, features=features
        )

    def _check_applied(self, names: tuple[str, ...]) -> tf.Operation | None:
        """Checks that gradients since the last update of these features' rows were applied."""
        if names not in self._unapplied:
            with tf.init_scope():
                self._unapplied[names] = tf.Variable(
                    _NEVER_APPLIED, dtype=tf.int64, trainable=False
                )
        return tf.debugging.Assert(
            self._unapplied[names] < 1,
            [
                "gradients were computed and not applied before the next step, but embedding rows "
                "learn each time that gradients are computed, so they cannot be accumulated: apply "
                "each step's gradients, and use larger batches instead"
            ],
        )

    def _learning_rows(self, ids: Mapping[str, Ids], token: Token) -> tuple[Any, list[tf.Tensor]]:
        """Reads rows whose gradient updates them."""
        made: list[Any] = []

        @tf.custom_gradient
        def read(_: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., tf.Tensor]]:
            found = self._find(ids, token)
            made.append(found)

            def update(*gradients: tf.Tensor) -> tf.Tensor:
                updates = self._update(found, gradients, ids, token)
                # The gradient of a tf.function runs only what its result depends on.
                with tf.control_dependencies(updates):
                    return tf.identity(tf.zeros([]))

            return tf.nest.flatten(found.rows), update

        rows = read(tf.convert_to_tensor(self.anchor))
        rows = rows if isinstance(rows, list | tuple) else [rows]
        # In a graph, TensorFlow keeps the function for good; eagerly, as long as the tape.
        graph = _graph()
        self._waiting |= dict.fromkeys(ids, weakref.ref(token if graph is None else graph))
        return made[0], list(rows)

    def _update(
        self,
        found: LookupResult,
        gradients: Sequence[tf.Tensor],
        names: Iterable[str],
        token: Token,
    ) -> list[tf.Operation]:
        graph = _graph()
        if graph in token.graphs:
            raise mistake(
                "the gradient of a step's embeddings is taken twice, and each time their rows "
                "would be updated: take all gradients of a step in one call of tape.gradient"
            )
        if getattr(_in_thread, "scaled", False):
            raise mistake(
                "the loss is scaled, which would scale the updates of embedding rows: use "
                "mixed_bfloat16 or float32 instead of mixed_float16, without a LossScaleOptimizer"
            )
        token.graphs.append(graph)
        for name in names:
            self._waiting.pop(name, None)
        packed = tf.nest.pack_sequence_as(found.rows, list(gradients))
        updates = self._apply(found, packed, token, token.differentiated.get(graph))
        # Elsewhere each operation with an effect runs. (And in the body of a loop, TensorFlow 2.21
        # drops updates that a gradient explicitly depends on: tests/layers/test_embeddings.py.)
        runs_all = graph is None or getattr(graph, "_add_control_dependencies", False)
        return [] if runs_all else updates


@contextmanager
def without_learning() -> Iterator[None]:
    """Makes lookups in this thread leave the tables as they are, within the block."""
    before = getattr(_in_thread, "is_frozen", False)
    _in_thread.is_frozen = True
    try:
        yield
    finally:
        _in_thread.is_frozen = before


class Token:
    """Stands for a lookup that waits for its gradient.

    Attributes:
      graphs: where its gradient was taken; None is eagerly.
      names: the features.
      differentiated: by such a graph, the features that the loss depends on.
      begun: of `ServerTables`, what each server knows of the step.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.graphs: list[Any] = []
        self.begun: dict[str, Any] = {}
        self.differentiated: dict[Any, set[str]] = {}

    def noting(self, feature: str, value: Activation) -> Activation:
        """Gives a feature's activation, of which a gradient is noted: rows learn after that."""

        @tf.custom_gradient
        def same(rows: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
            def note(gradient: Any) -> tf.Tensor:
                self.differentiated.setdefault(_graph(), set()).add(feature)
                return tf.convert_to_tensor(gradient)

            return tf.identity(rows), note

        if isinstance(value, tf.RaggedTensor):
            return value.with_flat_values(same(value.flat_values))
        return same(value)


def _graph() -> Any:
    """Gives the graph that is being traced, or None."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _is_waiting(reference: Any) -> bool:
    """Tells whether a lookup waits in the graph that is being traced, or on a tape."""
    asked = None if reference is None else reference()
    if asked is None:
        return False
    if isinstance(asked, Token):
        return bool(tf.executing_eagerly())
    return not tf.executing_eagerly() and asked is tf.compat.v1.get_default_graph()


def _watch_loss_scaling() -> None:
    """Makes Keras' LossScaleOptimizers note that they scale a loss."""
    from tf_keras.src.mixed_precision import loss_scale_optimizer as keras

    for kind in (keras.LossScaleOptimizer, keras.LossScaleOptimizerV3):
        scale = kind.get_scaled_loss
        if getattr(scale, "is_watched", False):
            continue

        def watched(self: Any, loss: Any, scale: Any = scale) -> Any:
            _in_thread.scaled = True
            return scale(self, loss)

        watched.is_watched = True  # type: ignore[attr-defined]
        kind.get_scaled_loss = watched


def _watch_optimizers() -> None:
    """Makes Keras' optimizers note for which tables they apply gradients."""
    for kind in (tf.keras.optimizers.Optimizer, tf.keras.optimizers.legacy.Optimizer):
        apply = kind.apply_gradients
        if getattr(apply, "is_watched", False):
            continue

        @functools.wraps(apply)
        def watched(
            self: Any, grads_and_vars: Any, *args: Any, apply: Any = apply, **kwargs: Any
        ) -> Any:
            pairs = list(grads_and_vars)
            ours = [t for t in list(_live) if any(v is t.anchor for _, v in pairs)]
            for tables in ours:
                tables.note_applied()
            remote = {id(t.anchor) for t in ours if t.is_remote}
            if remote:  # spare the calls that would update what has no effect
                with tf.init_scope():
                    make_optimizer_variables(self, [variable for _, variable in pairs])
                pairs = [pair for pair in pairs if id(pair[1]) not in remote]
            return apply(self, pairs, *args, **kwargs)

        watched.is_watched = True  # type: ignore[attr-defined]
        kind.apply_gradients = watched


def make_optimizer_variables(optimizer: Any, variables: Sequence[tf.Variable]) -> None:
    """Makes what an optimizer of Keras would make when it first applies gradients."""
    if isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        optimizer._create_all_weights(variables)
    elif not getattr(optimizer, "_built", False):
        optimizer.build(variables)


def _watch_counts() -> None:
    """Makes Keras' `summary` and `count_params` count the rows, not what stands for them."""
    from tf_keras.src.utils import layer_utils

    for name in ("count_params", "weight_memory_size"):
        count = getattr(layer_utils, name)
        if getattr(count, "is_watched", False):
            continue
        is_bytes = name == "weight_memory_size"

        def watched(weights: Any, count: Any = count, is_bytes: bool = is_bytes) -> int:
            counted = list(weights)
            ours = [t for t in list(_live) if any(w is t.anchor for w in counted)]
            others = [w for w in counted if not any(w is t.anchor for t in ours)]
            return int(count(others)) + sum(t.size(is_bytes=is_bytes) for t in ours)

        watched.is_watched = True  # type: ignore[attr-defined]
        setattr(layer_utils, name, watched)


def mistake(text: str, kind: type[E] = UsageError) -> E:  # type: ignore[assignment]
    """Makes an error that Keras and AutoGraph pass on as it is, without their account of calls."""
    error = kind(text)
    error._keras_call_info_injected = True  # type: ignore[attr-defined]
    error.ag_pass_through = True  # type: ignore[attr-defined]
    return error

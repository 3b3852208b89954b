"""The lookups and updates of a step in a model's embedding tables."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import tensorflow as tf

from embedps.errors import UsageError
from embedps.tables import message_ops, ops
from embedps.tables.activations import Activation, Ids
from embedps.tables.batch_ids import flatten_ids, like_ids
from embedps.tables.lookup_result import LookupResult, ShardRows
from embedps.tables.table_stores import TableStores


class EmbeddingCollection(TableStores):
    """Embedding tables on their shards.

    In a tf.function, a step issues one lookup and one update per group and shard, on the shard's
    device. Everything else runs on the caller's device.
    """

    def lookup(
        self,
        ids: Mapping[str, Ids],
        *,
        insert: bool,
        step: tf.Tensor | None = None,
        partial: bool = False,
    ) -> LookupResult:
        """Reads the rows of a batch, each distinct id once.

        Args:
          ids: by feature int64 [batch], or ragged int64 [batch, None] for a ragged feature.
          insert: create absent rows (training). An id that stays without a row reads as its table
            declares.
          step: the training step's number, int64 scalar in [0, 2^32); with `insert`, tables that
            have an admission need it.
          partial: leave out the features that `ids` lacks.

        Raises:
          UsageError: a feature is absent (if `partial`, all are), has another dtype or rank, or
            differs from its spec in being ragged.
        """
        insert = insert and self.learns
        result = self.route(ids, counts=insert, partial=partial)
        for g, routed in enumerate(result.routed):
            shards = []
            for shard, device in enumerate(self.devices if result.row_splits[g] else ()):
                asked = routed.request(shard)
                if device.startswith("/job:"):
                    asked = ops.RowPart(*message_ops.send(asked, device))
                with tf.device(device):
                    shards.append(self.lookup_shard(g, shard, asked, insert=insert, step=step))
            result.add(shards)
        return result

    def read_ahead(self, ids: Mapping[str, Ids]) -> None:
        """Begins to bring rows into memory that a `lookup` of the same ids will need."""
        for g, routed in enumerate(self.route(ids, counts=self.learns).routed):
            for shard, device in enumerate(self.devices):
                asked = routed.request(shard)
                with tf.device(device):
                    ops.read_ahead(self._stores[g][shard], asked.ids, asked.splits)

    def lookup_staged(
        self, ids: Mapping[str, Ids], staged: Sequence[Sequence[tf.Tensor]]
    ) -> LookupResult:
        """Reads rows as a partial `lookup` without insert would if staged files were applied.

        Args:
          ids: as in `lookup`.
          staged: `StagedFiles.handles`. Their stores must be in this process.
        """
        result = self.route(ids, partial=True)
        for g, routed in enumerate(result.routed):
            shards = []
            for shard, device in enumerate(self.devices if result.row_splits[g] else ()):
                asked = routed.request(shard)
                store = self._stores[g][shard]
                with tf.device(device):
                    rows = ops.lookup_staged(
                        store, staged[g][shard], asked.ids, asked.splits, dim=self.groups[g].dim
                    )
                    shards.append(ShardRows(rows, self._rates_asked(g, shard, asked), asked))
            result.add(shards)
        return result

    def route(
        self, ids: Mapping[str, Ids], *, counts: bool = False, partial: bool = False
    ) -> LookupResult:
        """Decides which shard to ask for which ids of a batch. The result has no rows or rates yet.

        A group without features in the result has nothing to ask: its lists are empty.

        Args:
          ids: as in `lookup`.
          counts: count the examples that show each id, for the tables that have an admission.
          partial: as in `lookup`.

        Raises:
          UsageError: as in `lookup`.
        """
        if partial and not any(f.name in ids for g in self.groups for f in g.features):
            names = [f.name for g in self.groups for f in g.features]
            raise UsageError(f"a lookup must have one of the features {names} but got {[*ids]}")
        result = LookupResult([], [], [], [], [])
        for group in self.groups:
            features = [f for f in group.features if not partial or f.name in ids]
            flat = {f.name: flatten_ids(f, ids) for f in features}
            result.routed.append(
                ops.route(
                    [values for values, _ in flat.values()],
                    feature_tables=group.table_indexes(features),
                    tables=[t.name for t in group.tables],
                    num_shards=self.num_shards,
                    row_splits=[splits for _, splits in flat.values()],
                    counted_tables=group.counted_tables if counts and self.learns else (),
                )
                if features
                else ops.RoutedIds([], [], [], [])
            )
            result.row_splits.append({name: splits for name, (_, splits) in flat.items()})
        return result

    def lookup_shard(
        self,
        group: int,
        shard: int,
        asked: ops.RowPart,
        *,
        insert: bool,
        step: tf.Tensor | None = None,
    ) -> ShardRows:
        """Reads rows of one shard. The current device must be the shard's.

        Rows whose `examples` were counted are looked up for a training step: see
        `ops.lookup_shown`.

        Raises:
          UsageError: examples were counted, and the step is None.
        """
        store, declared = self._stores[group][shard], self.groups[group]
        dim = declared.dim
        ids, splits, _, examples, _ = asked
        if examples is None:
            inserts = insert and self.learns and declared.trainable
            look = functools.partial(ops.lookup, store, ids, splits, dim=dim)
            if inserts and declared.frozen_steps:
                if step is None:
                    raise UsageError(
                        f"a training lookup of tables {[t.name for t in declared.tables]}, which "
                        "have frozen_steps, must have the step's number: pass lookup(..., step=...)"
                    )
                learns = step >= declared.frozen_steps
                rows = tf.cond(learns, lambda: look(insert=True), lambda: look(insert=False))
            else:
                rows = look(insert=inserts)
        elif step is None:
            named = [t.name for t in declared.tables if t.admission is not None]
            raise UsageError(
                f"a training lookup of tables {named}, which have an admission, must have the "
                "step's number: pass lookup(..., step=...)"
            )
        else:
            rows, absent = ops.lookup_shown(store, ids, splits, examples, dim=dim, step=step)
            asked = asked._replace(absent=absent)
        return ShardRows(rows, self._rates_asked(group, shard, asked), asked)

    def rates_of_shard(
        self, group: int, shard: int, ids: tf.Tensor, splits: tf.Tensor
    ) -> tf.Tensor:
        """Reads how often rows of one shard are updated, as `lookup_shard` reads the rows."""
        return ops.update_rates(self._stores[group][shard], ids, splits)

    def update_shard(
        self,
        group: int,
        shard: int,
        part: ops.RowPart,
        *,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        is_new: tf.Tensor | bool = True,
        learning: tf.Tensor | None = None,
    ) -> tf.Operation:
        """Applies gradients to rows of one shard. The current device must be the shard's.

        If `is_new`, a bool scalar, is false, the rows stay unchanged. If the part has `absent` ids,
        it first admits ids: so a step counts if and only if its gradients are applied. `learning`,
        bool [n], says which rows to update, by default those of all tables that learn.
        """
        if not self.groups[group].trainable:
            return tf.no_op()
        if frozen_steps := self.groups[group].frozen_steps:
            is_new = tf.logical_and(is_new, step >= frozen_steps)
        store = self._stores[group][shard]
        ids, splits, gradients, examples, absent = part
        admitted = []
        if absent is not None:
            admit = ops.admit(store, ids, splits, examples, absent, step=step, is_new=is_new)
            admitted = [] if tf.executing_eagerly() else [admit]
        if learning is None:
            learn = [t.name not in self._unchanged for t in self.groups[group].tables]
            learning = None if all(learn) else tf.repeat(learn, splits[1:] - splits[:-1])
        if learning is not None:
            ids, splits, gradients = ops.keep_rows(learning, ids, splits, gradients)
        with tf.control_dependencies(admitted):
            return ops.update(
                store,
                ids,
                splits,
                gradients,
                learning_rate=self._rate_of(group, learning_rate, step),
                step=step,
                is_new=is_new,
            )

    def _rate_of(self, group: int, learning_rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Gives a group's learning rate in a step that has this one."""
        own, base = self.groups[group].optimizer.learning_rate, self._base_rate
        if own is None or base is None or own == base:
            return learning_rate
        now = tf.cast(own(step), tf.float32) if callable(own) else own
        return now * (learning_rate / base) if base else tf.convert_to_tensor(now)

    def combine(self, result: LookupResult) -> dict[str, Activation]:
        """Combines rows into one vector per feature and example; differentiable in `result.rows`.

        Returns:
          By feature that was looked up float32 [batch, dim]. A ragged feature with combiner "none"
          has a row per id: ragged [batch, None, dim], or with a max_length dense [batch,
          max_length, dim], zeros after an example's last id. `activations.mask` tells which
          positions have an id. A feature's `rate_as` gives float32 of the ids' shape in the
            same way: the share of steps that update each id's row.
        """
        activations: dict[str, Activation] = {}
        for group, rows, routed, row_splits, rates, _ in zip(self.groups, *result, strict=True):
            features = [f for f in group.features if f.name in row_splits]
            if not features:
                continue
            lengths = [f.max_length or 0 for f in features]
            if not (self.learns and group.trainable):
                rows = [tf.stop_gradient(each) for each in rows]
            elif group.optimizer.clip_norm:
                rows = [_clipped(each, group.optimizer.clip_norm) for each in rows]
            combined = ops.combine(
                rows,
                routed.positions,
                [row_splits[f.name] for f in features],
                combiners=[f.combiner for f in features],
                feature_tables=group.table_indexes(features),
                lengths=lengths if any(lengths) else [],
            )
            for feature, value in zip(features, combined, strict=True):
                if feature.keeps_rows and feature.max_length is None:
                    value = tf.RaggedTensor.from_row_splits(
                        value, row_splits[feature.name], validate=False
                    )
                activations[feature.name] = value
            for feature, positions in zip(features, routed.positions, strict=True):
                if feature.rate_as is not None:
                    value = tf.gather(tf.concat(rates, axis=0), positions)
                    splits = row_splits[feature.name]
                    activations[feature.rate_as] = like_ids(feature, value, splits)
        return activations

    def update(
        self,
        result: LookupResult,
        gradients: Sequence[Sequence[tf.Tensor | None]],
        *,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        features: Collection[str] | None = None,
    ) -> list[tf.Operation]:
        """Applies gradients to the rows that were looked up.

        Args:
          result: what `lookup` returned.
          gradients: with respect to `result.rows`, in its structure; None where the loss does not
            depend on the rows.
          learning_rate: float32 scalar.
          step: int64 scalar in [0, 2^32), the rows' last step.
          features: those whose rows learn, by default all. Rows that only others look up stay as
            they are, whatever an optimizer does without a gradient.

        Returns:
          In a graph, the operations.
        """
        updates: list[tf.Operation] = []
        learning = result.learning(features)
        for at, part in result.parts(gradients).items():
            if at in learning:
                with tf.device(self.devices[at[1]]):
                    update = self.update_shard(
                        *at,
                        part,
                        learning_rate=learning_rate,
                        step=step,
                        learning=learning[at],
                    )
                updates.append(update)
        return updates

    def _rates_asked(self, group: int, shard: int, asked: ops.RowPart) -> tf.Tensor | None:
        if not self.groups[group].gives_rates:
            return None
        return self.rates_of_shard(group, shard, asked.ids, asked.splits)


def _clipped(rows: tf.Tensor, norm: float) -> tf.Tensor:
    """Gives the rows; their gradients are scaled down to a norm."""

    @tf.custom_gradient
    def same(values: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return tf.identity(values), lambda gradient: tf.clip_by_norm(gradient, norm, axes=[1])

    return same(rows)

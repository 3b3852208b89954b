"""A recommender model: columns, embedding tables, and a dense network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from embedps.errors import UsageError
from embedps.tables import FeatureSpec, TableSpec
from embedps.tables.specs import check

if TYPE_CHECKING:  # these import TensorFlow, which a model's flags do not wait for
    import tensorflow as tf

    from embedps.data.unit_reader import UnitReader

WIRE_DTYPES = ("float32", "bfloat16")


def check_wire_dtype(name: str) -> None:
    """Checks the dtype in which floats are sent.

    Raises:
      UsageError: it is not one of WIRE_DTYPES.
    """
    if name not in WIRE_DTYPES:
        raise UsageError(f"wire_dtype must be one of {', '.join(WIRE_DTYPES)} but got {name}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommender:
    """A recommender model: features looked up in tables, and a dense network over the rows.

    Attributes:
      tables: the embedding tables.
      features: the columns of ids and the tables they are looked up in.
      numerics: the columns of numbers, in the order in which the network gets them.
      label: the column of 0 and 1.
      build: makes the dense network. It is called once per process, inside the strategy's scope.
        The network is called with numerics, float32 [batch, len(numerics)] where NaN means missing,
        and embeddings by feature name, float32 [batch, dim]. It returns logits, float32 [batch] or
        [batch, 1]. If its call, or a layer's, takes `training`, that is True in training only.
        Losses that its layers add are minimized too. Only gradients may update its variables: see
        `network_check`.
      missing_id: the id that a null becomes; it has a row like any other id.
      wire_dtype: dtype of rows, the network's matrices and their gradients between workers and
        parameter servers, "float32" or "bfloat16"; both ends keep float32.
      model: name of the module that made it, as --model takes it; other processes make the model
        again by this name. None if only this process has the model.
      config: the instance of that module's class `Config` that `make` got.
    """

    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]
    numerics: tuple[str, ...] = ()
    label: str = "label"
    build: Callable[[], tf.keras.Model]
    missing_id: int = -1
    wire_dtype: str = "float32"
    model: str | None = None
    config: Any = None

    def __post_init__(self) -> None:
        check(self.tables, self.features)
        if not self.label:
            raise UsageError("a recommender must name its label's column")
        if not -(2**63) <= self.missing_id < 2**63:
            raise UsageError(f"missing_id must be a signed 64-bit number but got {self.missing_id}")
        check_wire_dtype(self.wire_dtype)

    def input(self, *, batch_rows: int, shuffle_rows: int) -> UnitReader:
        """Makes the reader of the model's columns."""
        from embedps.data.unit_reader import UnitReader

        return UnitReader(
            batch_rows=batch_rows,
            label=self.label,
            numerics=self.numerics,
            ids=tuple(f.name for f in self.features if not f.ragged),
            id_lists=tuple(f.name for f in self.features if f.ragged),
            shuffle_rows=shuffle_rows,
            missing_id=self.missing_id,
        )

    def build_network(self) -> tf.keras.Model:
        """Makes the dense network and its variables.

        Raises:
          UsageError: it is not a network as `build` must make, or a variable has no values, such as
            the kernel of a layer over no columns.
        """
        import tensorflow as tf

        from embedps.engine.network_interface import check_logits, check_network

        network = self.build()
        check_network(network)
        dims = {t.name: t.dim for t in self.tables}
        embeddings = {f.name: tf.fill([2, dims[f.table]], 0.01) for f in self.features}
        answer = network(tf.ones([2, len(self.numerics)]), embeddings, training=False)
        for variable in network.variables:
            # In a graph, TensorFlow's product over nothing ends the process (oneDNN, float32).
            if variable.shape.num_elements() == 0:
                raise UsageError(
                    f"the network's variable {variable.name!r} must have at least 1 value but is "
                    f"of shape {variable.shape.as_list()}: leave a layer out whose inputs have no "
                    f"columns (there are {len(self.numerics)} numerics)"
                )
        check_logits(answer, batch_rows=2)
        return network

    def logits(
        self,
        network: tf.keras.Model,
        numerics: tf.Tensor,
        embeddings: dict[str, tf.Tensor],
        *,
        training: bool,
    ) -> tf.Tensor:
        """Computes the network's logits, float32 [batch]."""
        import tensorflow as tf

        return tf.reshape(network(numerics, embeddings, training=training), [-1])

    def loss(self, network: tf.keras.Model, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Computes what a step minimizes: mean log loss, plus the losses the network has added.

        Args:
          network: the one that computed `logits` last.
          labels: float32 [batch].
          logits: float32 [batch].
        """
        import tensorflow as tf

        log_losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        added = [tf.reduce_sum(tf.cast(each, tf.float32)) for each in network.losses]
        return tf.add_n([tf.reduce_mean(log_losses), *added])

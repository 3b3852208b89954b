"""Layers of a dense network that are faster than their equivalents in plain TensorFlow.

The equivalents spend most of their time moving bytes.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps import kernels
from embedps.dtypes import check_compute_dtype
from embedps.errors import UsageError
from embedps.layers import stock_ops


@tf.keras.utils.register_keras_serializable(package="embedps")
class MLP(tfrs.layers.blocks.MLP):
    """Dense layers with ReLU between them, over concatenated inputs.

    The weights are float32 and have the names and initial values of tfrs.layers.blocks.MLP. With
    bfloat16, all layers are one op forward and one op backward. It multiplies bfloat16 and sums
    float32. Activations and the gradients between layers are bfloat16. The weights' gradients are
    float32.
    """

    def __init__(
        self,
        units: Sequence[int],
        *,
        final_activation: str | None = None,
        compute_dtype: str = "float32",
        out_dtype: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Declares the layers.

        Args:
          units: the number of outputs of each layer.
          final_activation: "relu" or None, for the last layer.
          compute_dtype: one of dtypes.COMPUTE_DTYPES.
          out_dtype: the output's dtype; by default the compute dtype.

        Raises:
          UsageError: a dtype or the final activation is another one, or a layer has no outputs.
        """
        if not units or min(units) < 1:
            raise UsageError(f"an MLP's layers must have at least 1 output but got {list(units)}")
        check_compute_dtype(compute_dtype)
        check_compute_dtype(out_dtype or compute_dtype)
        if final_activation not in (None, "relu"):
            raise UsageError(f"final_activation must be None or 'relu' but got {final_activation}")
        # No autocast: Keras would cast bfloat16 inputs to float32, which only costs time.
        super().__init__(list(units), final_activation=final_activation, autocast=False, **kwargs)
        self._declared = {
            "units": list(units),
            "final_activation": final_activation,
            "compute_dtype": compute_dtype,
            "out_dtype": out_dtype,
        }
        self._final_relu = final_activation == "relu"
        self._in_bfloat16 = compute_dtype == "bfloat16"
        self._out_dtype = tf.as_dtype(out_dtype or compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Gives the arguments that make an equal layer, as JSON has them."""
        return {**super().get_config(), **self._declared}

    def build(self, input_shape: Any) -> None:
        """Makes the weights, with the names that calling the layers would give them.

        Raises:
          UsageError: the inputs have no columns.
        """
        shapes = [input_shape] if isinstance(input_shape, tf.TensorShape) else input_shape
        width = sum(shape[-1] for shape in shapes)
        if width == 0:  # some of TensorFlow's kernels crash on a product over nothing
            raise UsageError(
                f"an MLP's inputs must have at least 1 column but {self.name}'s have none: leave "
                "it out where there is nothing to compute with"
            )
        for layer in self._sublayers:
            with tf.name_scope(layer.name):
                layer.build(tf.TensorShape([None, width]))
            width = layer.units
        super().build(input_shape)

    def call(self, inputs: tf.Tensor | Sequence[tf.Tensor]) -> tf.Tensor:
        """Computes the layers.

        Args:
          inputs: float32 or bfloat16 [batch, n], or several of them to concatenate.

        Returns:
          out_dtype [batch, units[-1]].
        """
        several = [inputs] if tf.is_tensor(inputs) else list(inputs)
        if self._in_bfloat16:
            weights = [layer.kernel for layer in self._sublayers]
            biases = [layer.bias for layer in self._sublayers]
            if stock_ops.wanted():
                return stock_ops.mlp(
                    several,
                    weights,
                    biases,
                    final_relu=self._final_relu,
                    out_dtype=self._out_dtype,
                )
            out, _ = kernels.load().embedps_mlp(
                inputs=several,
                kernels=weights,
                biases=biases,
                final_relu=self._final_relu,
                out_type=self._out_dtype,
            )
            return out
        several = [tf.cast(x, tf.float32) for x in several]
        x = several[0] if len(several) == 1 else tf.concat(several, axis=1)
        return tf.cast(super().call(x), self._out_dtype)


@tf.RegisterGradient("EmbedpsMlp")
def _mlp_gradient(op: tf.Operation, upstream: tf.Tensor, _: tf.Tensor) -> list[tf.Tensor]:
    num_layers = op.get_attr("num_layers")
    num_inputs = len(op.get_attr("input_types"))
    inputs = list(op.inputs)
    # Inputs that no tape watches, such as numeric features, need no gradient.
    skipped = set(getattr(op, "skip_input_indices", None) or ())
    needs_inputs = not skipped.issuperset(range(num_inputs))
    gradients = kernels.load().embedps_mlp_grad(
        upstream=upstream,
        inputs=inputs[:num_inputs],
        kernels=inputs[num_inputs : num_inputs + num_layers],
        saved=op.outputs[1],
        final_relu=op.get_attr("final_relu"),
        gradient_types=op.get_attr("input_types") if needs_inputs else [],
    )
    return [
        *(gradients.input_gradients if needs_inputs else [None] * num_inputs),
        *gradients.kernel_gradients,
        *gradients.bias_gradients,
    ]


def dot_interaction(
    features: Sequence[tf.Tensor], out_dtype: tf.DType | str = tf.float32
) -> tf.Tensor:
    """Computes the dot products of every pair of an example's vectors; differentiable.

    Values and order are those of tfrs.layers.feature_interaction.DotInteraction(), without its
    batched square matrix, mask and gather.

    Args:
      features: n >= 2 tensors, each float32 or bfloat16 [batch, dim].
      out_dtype: float32 or bfloat16. Sums are float32.

    Returns:
      out_dtype [batch, n (n - 1) / 2]: vector i . vector j for each j < i, row by row.
    """
    if stock_ops.wanted():
        return stock_ops.dot_interaction(features, tf.as_dtype(out_dtype))
    return kernels.load().embedps_dot_interaction(features=list(features), out_type=out_dtype)


@tf.RegisterGradient("EmbedpsDotInteraction")
def _dot_interaction_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[tf.Tensor]:
    return list(
        kernels.load().embedps_dot_interaction_grad(features=list(op.inputs), upstream=upstream)
    )

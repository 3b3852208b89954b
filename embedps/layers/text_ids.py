"""Makes ids of texts in a tf.data pipeline or a model, as ingestion does."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from embedps import kernels


def fingerprint(texts: Any) -> Any:
    """Hashes texts to ids: the XXH3-64 of each, never one of the reserved ids.

    Ingestion gives columns of type "string" the same ids. No vocabulary is kept.

    Args:
      texts: a string tensor of any shape, or a ragged one.

    Returns:
      int64 of the same shape.
    """
    return tf.ragged.map_flat_values(
        lambda flat: kernels.load().embedps_fingerprint(tf.convert_to_tensor(flat)), texts
    )

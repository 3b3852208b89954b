"""The models of the zoo in plain tf-keras: stock layers over tf.keras.layers.Embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import tensorflow as tf

from benchmarks.datasets import write_dataset
from benchmarks.planted_sequences import CLICK, SECONDS, World, places_of
from embedps.data.dataset import Dataset
from embedps.data.unit_reader import NUMERICS
from embedps.layers.stock_ops import stock_ops
from embedps.run.model_module import find_model
from embedps.tables import FeatureSpec

CLICKS = ("logistic_regression", "fm", "wide_deep", "deepfm", "dcn_v2", "mmoe", "ple", "dlrm")
HISTORIES = ("din", "sasrec", "two_tower")
MODELS = (*CLICKS, *HISTORIES)
OPTIONS: dict[str, dict[str, Any]] = {"two_tower": {"history": "history", "normalize": True}}
"""Options that differ from the models' defaults."""
BATCHES = dict.fromkeys(MODELS, 2048) | {"sasrec": 256, "din": 512}
RATE = 0.02

_PLAIN: dict[str, dict[str, Any]] = {"two_tower": {"log_q": False}}
"""Keras' embeddings do not count their updates."""
_USERS, _ITEMS = 8000, 20000


def histories(name: str, folder: Path) -> Dataset:
    """Makes the dataset of a model of histories."""
    world = World(users=_USERS, items=_ITEMS)
    places = places_of(world)
    if name == "din":
        clicks = {split: world.clicks(*each)[0] for split, each in places.items()}
        tables = {split: table.drop_columns([SECONDS.name]) for split, table in clicks.items()}
    else:
        tables = {split: world.next_items(*each) for split, each in places.items()}
    return write_dataset(folder, tables, labels=(CLICK,))


def read_columns(dataset: Dataset, rows: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Reads the first rows of the training split as Keras takes them.

    Returns:
      The columns, whose ids count from 0; and by column of ids, the rows that its table needs.
      Columns of a dataset with lists have ids of `histories`, which count from 0 already.
    """
    table = pq.read_table(dataset.paths("train")[0]).slice(0, rows)
    columns: dict[str, Any] = {dataset.label: tf.constant(table[dataset.label].to_numpy())}
    numbers = [table[f.name].to_numpy() for f in dataset.numeric]
    shape = [table.num_rows, len(numbers)]
    packed = np.stack(numbers, 1) if numbers else np.zeros(shape)
    columns[NUMERICS] = tf.constant(packed, tf.float32, shape)
    has_lists = any(f.ragged for f in dataset.categorical)
    sizes = {}
    for feature in dataset.categorical:
        name, values = feature.name, table[feature.name].combine_chunks()
        if has_lists:
            sizes[name] = _USERS if name == "user" else _ITEMS
            columns[name] = _ragged(values) if feature.ragged else tf.constant(values.to_numpy())
        else:
            known, places = np.unique(values.to_numpy(), return_inverse=True)
            columns[name], sizes[name] = tf.constant(places, tf.int64), len(known)
    return columns, sizes


def make_plain(name: str, dataset: Dataset, sizes: Mapping[str, int]) -> Any:
    """Makes a model of the zoo over Keras' embeddings."""
    model = make_ours(name, dataset, stock=True, **_PLAIN.get(name, {}))
    dims = {t.name: t.embedding_dim for t in model.embeddings.tables}
    model.embeddings = PlainEmbeddings(model.embeddings.features, dims, sizes)
    return model


def make_ours(name: str, dataset: Dataset, *, stock: bool, **options: Any) -> Any:
    """Makes a model of the zoo; `stock` says that all but its embeddings is of stock ops."""
    module = find_model(name)
    options = {"sparse_optimizer": "adagrad", **OPTIONS.get(name, {}), **options}
    model = module.make(module.Config(**options), dataset).build()
    if not stock:
        return model
    compute_loss = model.compute_loss

    def compute_stock_loss(*args: Any, **kwargs: Any) -> tf.Tensor:
        with stock_ops():
            return compute_loss(*args, **kwargs)

    model.compute_loss = compute_stock_loss
    return model


class PlainEmbeddings(tf.keras.layers.Layer):
    """Keras' Embedding by table, over ids from 0; lists are padded."""

    def __init__(
        self, features: Sequence[FeatureSpec], dims: Mapping[str, int], sizes: Mapping[str, int]
    ) -> None:
        """Makes an Embedding for each of `dims`, with the rows that `sizes` tells."""
        super().__init__()
        self._features = features
        self.layers = {n: tf.keras.layers.Embedding(sizes[n], dim) for n, dim in dims.items()}

    def call(self, batch: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Looks up the rows of a batch."""
        masks = self.compute_mask(batch)
        return {f.name: self._look_up(f, batch, masks) for f in self._features if f.name in batch}

    def compute_mask(self, batch: Mapping[str, Any], mask: Any = None) -> dict[str, tf.Tensor]:
        """Tells which positions of padded lists have an id."""
        lists = [f for f in self._features if f.ragged and f.name in batch]
        return {f.name: tf.sequence_mask(*_lengths(f, batch[f.name])) for f in lists}

    def _look_up(
        self, feature: FeatureSpec, batch: Mapping[str, Any], masks: Mapping[str, tf.Tensor]
    ) -> tf.Tensor:
        ids, layer = batch[feature.name], self.layers[feature.table_name]
        if not feature.ragged:
            return layer(ids)
        if feature.max_length:
            ids = ids[:, -feature.max_length :]
        rows = layer(ids.to_tensor(shape=[None, feature.max_length]))
        kept = tf.cast(masks[feature.name], tf.float32)[:, :, None]
        if feature.keeps_rows:
            return rows * kept
        return tf.math.divide_no_nan(tf.reduce_sum(rows * kept, 1), tf.reduce_sum(kept, 1))


def _lengths(feature: FeatureSpec, ids: tf.RaggedTensor) -> tuple[tf.Tensor, Any]:
    lengths = ids.row_lengths()
    if not feature.max_length:
        return lengths, tf.reduce_max(lengths)
    return tf.minimum(lengths, feature.max_length), feature.max_length


def _ragged(values: pa.ListArray) -> tf.RaggedTensor:
    lengths = values.value_lengths().to_numpy()
    return tf.RaggedTensor.from_row_lengths(values.flatten().to_numpy(), lengths)

"""Any tf.data pipeline trains rows, and so do ids that Keras' preprocessing or a hash makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import embedps
from embedps.features.text_values import fingerprint

WORDS = np.array(["ant", "bee", "cat", "дог", ""])
TEXTS = WORDS[np.random.default_rng(2).integers(0, len(WORDS), 256)]
PLACES = np.array([WORDS.tolist().index(text) for text in TEXTS])
LABELS = (PLACES % 2).astype(np.float32)


def columns(ids: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(({"id": ids}, LABELS))


def made_by(layer: Any, values: Any = TEXTS) -> tf.data.Dataset:
    return columns(values).map(lambda x, y: ({"id": layer(x["id"])}, y))


def from_generator(_: Path) -> tf.data.Dataset:
    def examples() -> Any:
        for place, label in zip(PLACES, LABELS, strict=True):
            yield {"id": place}, label

    spec = {"id": tf.TensorSpec([], tf.int64)}, tf.TensorSpec([], tf.float32)
    return tf.data.Dataset.from_generator(examples, output_signature=spec)


def from_pandas(_: Path) -> tf.data.Dataset:
    frame = pd.DataFrame({"id": PLACES, "label": LABELS})
    labels = frame.pop("label")
    return tf.data.Dataset.from_tensor_slices((dict(frame), labels))


def from_records(folder: Path) -> tf.data.Dataset:
    path = str(folder / "examples.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for place, label in zip(PLACES, LABELS, strict=True):
            example = tf.train.Example()
            example.features.feature["id"].int64_list.value.append(place)
            example.features.feature["label"].float_list.value.append(label)
            writer.write(example.SerializeToString())
    spec = {n: tf.io.FixedLenFeature([], t) for n, t in (("id", tf.int64), ("label", tf.float32))}

    def parse(record: tf.Tensor) -> Any:
        found = tf.io.parse_single_example(record, spec)
        return {"id": found["id"]}, found["label"]

    return tf.data.TFRecordDataset(path).map(parse)


HASHING = tf.keras.layers.Hashing(num_bins=1000)
LOOKUP = tf.keras.layers.StringLookup(vocabulary=WORDS[:4], num_oov_indices=1)
DISCRETE = tf.keras.layers.Discretization(bin_boundaries=[0.5, 1.5, 2.5, 3.5])
INPUTS: dict[str, tuple[Callable[[Path], tf.data.Dataset], Any]] = {
    "fingerprint": (lambda _: made_by(embedps.fingerprint), [fingerprint(w) for w in WORDS]),
    "Hashing": (lambda _: made_by(HASHING), HASHING(WORDS).numpy()),
    "StringLookup": (lambda _: made_by(LOOKUP), LOOKUP(WORDS).numpy()),
    "Discretization": (lambda _: made_by(DISCRETE, PLACES.astype(np.float32)), range(5)),
    "generator": (from_generator, range(5)),
    "pandas": (from_pandas, range(5)),
    "TFRecord": (from_records, range(5)),
    "snapshot": (lambda folder: columns(PLACES).snapshot(str(folder)), range(5)),
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_pipeline_trains_the_rows_of_its_ids(name: str, tmp_path: Path) -> None:
    tf.keras.utils.set_random_seed(1)
    make, ids = INPUTS[name]
    layer = embedps.Embeddings({"id": 2}, learning_rate=0.5)
    column = tf.keras.layers.Input((), dtype=tf.int64)
    out = tf.keras.layers.Dense(1, "sigmoid")(layer({"id": column})["id"])
    model = tf.keras.Model({"id": column}, out)
    model.compile(tf.keras.optimizers.Adagrad(0.5), "binary_crossentropy")
    losses = model.fit(make(tmp_path).batch(32), epochs=6, verbose=0).history["loss"]
    assert losses[-1] < 0.05 < losses[0]
    assert sorted(layer.own.collection.ids("id")) == sorted(set(map(int, ids)))


def test_texts_of_any_shape_have_the_ids_of_ingestion() -> None:
    ragged = tf.ragged.constant([["ant", "bee"], [], ["дог"]])
    found = embedps.fingerprint(ragged)
    assert found.to_list() == [[fingerprint("ant"), fingerprint("bee")], [], [fingerprint("дог")]]
    assert embedps.fingerprint(tf.constant([["ant"]])).numpy() == [[fingerprint("ant")]]

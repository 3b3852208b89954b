"""A row has the same bits in any batch: by twins of TensorFlow's ops where these need them."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset
from embedps.engine import batch_free as batch_free_module
from embedps.engine.batch_free import batch_free, needs_twins
from embedps.engine.row_padding import pad
from embedps.models import dlrm, wide_deep
from tests.builders import ROOT, TINY_DLRM, dataset_fixture, make_trainer

ROWS = 700
SIZES = (1, 2, 15, 16, 17, 32, 48, 80, 100, 128, 208, 224, 331, 512)


@pytest.fixture
def without_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the twins, whatever the processor has.

    oneDNN's variable is not set: where oneDNN starts in this test, it keeps the limit, and the
    first bfloat16 product of a later test ends the process.
    """
    monkeypatch.setattr(batch_free_module, "needs_twins", lambda: True)


@pytest.fixture
def asked_anew() -> Iterator[None]:
    needs_twins.cache_clear()
    yield
    needs_twins.cache_clear()


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
@pytest.mark.parametrize("most", ["AVX2", "sse41", "AVX2_VNNI"])
@pytest.mark.usefixtures("asked_anew")
def test_each_of_onednns_variables_masks(
    monkeypatch: pytest.MonkeyPatch, name: str, most: str
) -> None:
    monkeypatch.setenv(name, most)
    with_avx512 = "flags : avx2 avx512f avx512bw"
    monkeypatch.setattr(Path, "read_text", lambda _: with_avx512)
    assert needs_twins()
    needs_twins.cache_clear()
    monkeypatch.delenv(name)
    assert not needs_twins()


def differing(
    score: Callable[[int, int], np.ndarray], rows: int, sizes: Sequence[int] = SIZES
) -> dict[int, list[int]]:
    """Finds by size of a batch the rows whose bits are not those that they have in the whole."""
    whole, found = score(0, rows), {}
    for size in sizes:
        for first in sorted({0, 5, (rows - size) // 2, rows - size}):
            part = score(first, size)
            assert part.shape == whole[first : first + size].shape
            places = np.unique(np.nonzero(part != whole[first : first + size])[0])
            if len(places):
                found[size] = places.tolist()
    return found


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


WEIGHTS = {width: noise(37, width) for width in (1, 3, 8, 17, 64)}
MATRICES = noise(5, 6)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def product_by(w: np.ndarray) -> tuple[Any, Any]:
    return lambda x: tf.matmul(x, w), lambda x: x @ w


@functools.cache
def variable() -> tf.Variable:
    with tf.init_scope():
        return tf.Variable(tf.fill([1, 37], 2.0))


@tf.function
def called(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(tf.matmul(x, WEIGHTS[17]))


@tf.function
def called_einsum(x: tf.Tensor) -> tf.Tensor:
    left, right = tf.reshape(x[:, :30], [-1, 6, 5]), tf.reshape(x[:, 7:], [-1, 6, 5])
    return tf.einsum("abc,adc->abd", left, right)


def looped(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(
        lambda i, _: i < 3,
        lambda i, y: (i + 1, tf.matmul(y, tf.matmul(WEIGHTS[3], WEIGHTS[3], transpose_b=True))),
        (0, x),
    )[1]


SQUARE = WEIGHTS[3].astype(np.float64) @ WEIGHTS[3].astype(np.float64).T
FUNCTIONS: dict[str, tuple[Any, Any]] = {
    **{
        f"product of {n} columns": product_by(w)
        for n, w in WEIGHTS.items()
    },
    "transposed": (
        lambda x: tf.matmul(tf.transpose(x), WEIGHTS[8].T, transpose_a=True, transpose_b=True),
        lambda x: x @ WEIGHTS[8],
    ),
    "last dimension": (
        lambda x: tf.tensordot(tf.reshape(x[:, :30], [-1, 6, 5]), MATRICES, [[2], [0]]),
        lambda x: x[:, :30].reshape(-1, 6, 5) @ MATRICES,
    ),
    "batch": (
        lambda x: tf.matmul(tf.reshape(x[:, :30], [-1, 6, 5]), tf.reshape(x[:, 7:], [-1, 6, 5]),
                            transpose_b=True),
        lambda x: x[:, :30].reshape(-1, 6, 5) @ x[:, 7:].reshape(-1, 6, 5).transpose(0, 2, 1),
    ),
    "broadcast batch": (
        lambda x: tf.matmul(tf.reshape(x[:, :30], [-1, 6, 5]), MATRICES),
        lambda x: x[:, :30].reshape(-1, 6, 5) @ MATRICES,
    ),
    "einsum": (
        lambda x: tf.einsum("ab,bc->ac", x, WEIGHTS[17]), lambda x: x @ WEIGHTS[17],
    ),
    "einsum in a called function": (
        called_einsum,
        lambda x: x[:, :30].reshape(-1, 6, 5) @ x[:, 7:].reshape(-1, 6, 5).transpose(0, 2, 1),
    ),
    "softmax": (tf.nn.softmax, softmax),
    "log softmax": (tf.nn.log_softmax, lambda x: np.log(softmax(x))),
    "called function": (called, lambda x: np.maximum(x @ WEIGHTS[17], 0)),
    "loop": (looped, lambda x: x @ SQUARE @ SQUARE @ SQUARE),
    "row of a variable": (
        lambda x: tf.nn.embedding_lookup(variable(), tf.zeros_like(x[:, 0], tf.int64)) + x,
        lambda x: x + 2,
    ),
    "input itself": (lambda x: x, lambda x: x),
}  # fmt: skip


@pytest.mark.usefixtures("without_avx512")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_functions_rows_have_the_same_bits_in_any_batch(name: str) -> None:
    function, formula = FUNCTIONS[name]
    given = noise(ROWS, 37)

    @tf.function(input_signature=[tf.TensorSpec([None, 37])])
    def padded(x: tf.Tensor) -> tf.Tensor:
        rows = tf.shape(x, tf.int64)[0]
        return batch_free(function)(pad(x, rows))[:rows]

    assert differing(lambda at, rows: padded(given[at : at + rows]).numpy(), ROWS) == {}
    expected = formula(given.astype(np.float64))
    np.testing.assert_allclose(
        padded(given), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max()
    )


@pytest.mark.usefixtures("without_avx512")
def test_an_attention_models_rows_have_the_same_bits_in_any_batch(
    capfd: pytest.CaptureFixture[str],
) -> None:
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(1)
    attention = layers.MultiHeadAttention(4, 16)
    dense, head = layers.EinsumDense("...x,xy->...y", 24, activation="relu"), layers.Dense(1)

    def network(x: tf.Tensor) -> tf.Tensor:
        x = tf.reshape(x, [-1, 10, 32])
        return head(tf.reshape(dense(attention(x, x) + x), [-1, 240]))

    given = noise(1100, 320)
    expected = network(given)  # by TensorFlow's einsums

    @tf.function(input_signature=[tf.TensorSpec([None, 320])])
    def padded(x: tf.Tensor) -> tf.Tensor:
        rows = tf.shape(x, tf.int64)[0]
        return batch_free(network)(pad(x, rows))[:rows]

    def score(first: int, rows: int) -> np.ndarray:
        return padded(given[first : first + rows]).numpy()

    sizes = (*range(1, 10), 15, 16, 17, 31, 61, 64, *range(90, 1000, 33))
    assert differing(score, len(given), sizes) == {}
    np.testing.assert_allclose(padded(given), expected, atol=1e-5)
    assert ops_of(padded) & {"Einsum", "MatMul", "BatchMatMulV2", "Softmax"} == set()
    assert "last bits" not in capfd.readouterr().err


def ops_of(function: Any) -> set[str]:
    graph = function.get_concrete_function().graph.as_graph_def()
    functions = [each.node_def for each in graph.library.function]
    return {node.op for nodes in (graph.node, *functions) for node in nodes}


@pytest.mark.usefixtures("without_avx512")
def test_what_stays_tensorflows_is_named_once(capfd: pytest.CaptureFixture[str]) -> None:
    kernel = noise(3, 1, 4)

    def network(x: tf.Tensor) -> tf.Tensor:
        y = tf.nn.conv1d(x[:, :, None], kernel, 1, "SAME")
        half = tf.cast(x, tf.bfloat16)
        places = tf.matmul(tf.cast(x, tf.int32), tf.cast(x, tf.int32), transpose_b=True)
        return y[:, :, 0] + tf.cast(tf.matmul(half, half, transpose_b=True), tf.float32)[:, :1] + (
            tf.einsum("ii->", x[:37]) + tf.cast(places[:, :1], tf.float32)
        )  # fmt: skip

    batch_free_module._tell.cache_clear()
    for _ in range(2):  # traced only: masked so, oneDNN ends the process at a product of bfloat16
        tf.function(lambda x: batch_free(network)(x)).get_concrete_function(noise(37, 37))
    (line,) = [n for n in capfd.readouterr().err.splitlines() if "last bits" in n]
    assert "Conv2D of float32, Einsum of float32, MatMul of bfloat16, and" in line


@pytest.mark.usefixtures("without_avx512")
def test_structures_and_variables_go_through() -> None:
    scale = tf.Variable(3.0)

    def function(given: dict[str, Any]) -> dict[str, Any]:
        return {"sums": tf.reduce_sum(given["lists"], 1) * scale, "lists": given["lists"]}

    lists = tf.ragged.constant([[1.0, 2.0], [], [5.0]])
    made = tf.function(lambda x: batch_free(function)({"lists": x})).get_concrete_function(
        tf.RaggedTensorSpec([None, None], tf.float32)
    )
    assert [*made.graph.variables] == [scale]
    found = made(lists)
    assert found["lists"].to_list() == lists.to_list()
    np.testing.assert_array_equal(found["sums"], [9, 0, 15])


class Tower(tf.keras.Model):
    """A user's model of Keras layers."""

    def __init__(self) -> None:
        super().__init__()
        layers = tf.keras.layers
        self.embeddings = embedps.Embeddings(dict.fromkeys(("C1", "C2", "C3"), 6))
        self.attention, self.gru = layers.Attention(), layers.GRU(7)
        self.deep = tf.keras.Sequential(
            [layers.Dense(50, "relu"), layers.LayerNormalization(), layers.Dense(5, "softmax")]
        )
        self.head = layers.Dense(1)

    def call(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        found = self.embeddings({name: features[name] for name in ("C1", "C2", "C3")})
        x = tf.stack([found[n] for n in ("C1", "C2", "C3")], 1)
        x = self.attention([x, x])
        return self.head(tf.concat([self.deep(tf.reshape(x, [-1, 18])), self.gru(x)], 1))

    def compute_loss(self, features: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        logits = self(features, training=training)[:, 0]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(features["label"], logits)
        return tf.reduce_mean(losses)


dataset = dataset_fixture()


@pytest.mark.slow
@pytest.mark.usefixtures("without_avx512")
@pytest.mark.parametrize("name", ["dlrm", "wide_deep", "keras"])
def test_a_loaded_models_scores_have_the_same_bits_in_any_batch(
    name: str, dataset: Dataset, tmp_path: Path
) -> None:
    recommender = {
        "dlrm": lambda: dlrm.make(TINY_DLRM, dataset),
        "wide_deep": lambda: wide_deep.make(wide_deep.Config(embedding_dim=4), dataset),
        "keras": lambda: embedps.Recommender(build=Tower),
    }[name]()
    make_trainer(dataset, tmp_path, recommender=recommender, sparse_learning_rate=0.3).fit()
    model = embedps.load(tmp_path, recommender=recommender, data=dataset.directory)
    table = pa.concat_tables(pq.read_table(path) for path in dataset.paths("train"))

    def score(first: int, rows: int) -> np.ndarray:
        (found,) = model.predict(table.slice(first, rows)).values()
        return found

    assert len(np.unique(score(0, ROWS))) > ROWS // 2
    assert differing(score, ROWS) == {}


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_same_holds_where_tensorflow_starts_without_avx512_and_amx() -> None:
    engine, server = "tests/engine/test_batch_free.py", "tests/serving/server/test_served_model.py"
    tests = (
        f"{engine}::test_a_loaded_models_scores_have_the_same_bits_in_any_batch[dlrm]",
        f"{server}::test_each_answer_is_the_evaluators_of_the_manifest_it_names",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},  # oneDNN reads it once
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout

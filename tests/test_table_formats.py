"""`embedps table import` of what other systems wrote, and of Keras models that a test trains."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.replay import stream_table
from embedps.checkpoint.tools.row_input import RowInput
from embedps.features.text_values import fingerprint
from tests.builders import latest, make_trainer
from tests.commands import table_command as main

FOREIGN = Path(__file__).parent / "checkpoint" / "foreign"
TEXTS = [f"item {i} é" for i in range(10)]
DIM = 4
ITEM = [[-0.31476897, -0.12658262], [-0.19489998, 0.4320004], [-0.32408983, -0.23016644]]


def rows_in(path: Path, name: str = "item") -> dict[int, list[float]]:
    _, batches = stream_table(CheckpointDirectory(path), latest(path), name)
    rows = (row for batch in batches for row in batch.to_pylist())
    return {row["id"]: row["embedding"] for row in rows}


def take(path: Path, *given: object, dim: int = 2) -> int:
    return main("import", path, "--table", "item", "--embedding-dim", dim, "--input", *given)


def floats(rows: list[list[float]]) -> list[list[float]]:
    return np.array(rows, np.float32).tolist()


def test_parquet_is_read_by_part(tmp_path):
    values = np.random.default_rng(0).random(400_000 * 16, np.float32)  # 26 MB
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values), 16)
    table = pa.table({"id": np.arange(400_000), "embedding": lists})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=65_536)
    before, most = pa.total_allocated_bytes(), 0
    for _ in RowInput(path=tmp_path / "a.parquet").vectors({"embedding": 16}):
        most = max(most, pa.total_allocated_bytes() - before)
    assert 4e6 < most < 16e6  # some batches of 65,536 rows


def test_word2vec_text_of_gensim(tmp_path, capsys):
    assert take(tmp_path / "v", FOREIGN / "gensim.vec", "--text-ids") == 0
    assert rows_in(tmp_path / "v") == dict(
        zip(
            map(fingerprint, ["blue", "café", "red"]),
            floats(
                [[-0.033853814, 0.014297979], [0.24827728, 0.44965196], [-0.47242546, -0.35557142]]
            ),
            strict=True,
        )
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 2\n7 1.5 2 \n-8 3 4e-1 \n", {7: [1.5, 2.0], -8: [3.0, 0.4]}),  # fastText's last space
        ("7 1.5 2\n", {7: [1.5, 2.0]}),  # GloVe has no header
        ("", {}),
    ],
)
def test_words_may_be_numbers_without_a_header(tmp_path, text, expected):
    (tmp_path / "a.txt").write_text(text)
    assert take(tmp_path / "v", tmp_path / "a.txt") == 0
    assert rows_in(tmp_path / "v") == {
        i: np.array(each, np.float32).tolist() for i, each in expected.items()
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 3\na 1 2 3\n", "must have 2 floats per row but has 3"),
        ("2 2\na 1 2\n", "must have 2 rows but has 1"),
        ("2 2\na 1 2\nb 1\n", "line 3 must have a word and 2 floats"),
        ("1 2\na 1 x\n", "cannot be read: could not convert"),
        ("1 2\na 1 nan\n", "must have finite numbers only"),
    ],
)
def test_wrong_words_are_one_line(tmp_path, capsys, text, said):
    (tmp_path / "a.vec").write_text(text)
    assert take(tmp_path / "v", tmp_path / "a.vec", "--text-ids") == 2
    assert said in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


def test_state_dict_of_torchrec(tmp_path, capsys):
    """Rows' numbers are the ids there, and DCP gives the same file."""
    file = FOREIGN / "torchrec.safetensors"
    assert take(tmp_path / "v", file) == 2
    error = capsys.readouterr().err
    assert "--tensor must name one array of 2 floats per row but fits 2; the file has " in error
    assert "embedding_bags.item.weight, embedding_bags.user.weight" in error
    assert take(tmp_path / "v", file, "--tensor", "item") == 0
    assert [rows_in(tmp_path / "v")[i] for i in range(3)] == floats(ITEM)
    assert len(rows_in(tmp_path / "v")) == 4
    half = FOREIGN / "torchrec-bfloat16.safetensors"
    assert take(tmp_path / "h", half, "--tensor", "embedding_bags.item.weight") == 0
    assert [rows_in(tmp_path / "h")[i] for i in range(3)] == pytest.approx(
        np.array(ITEM), rel=2**-8
    )


def test_dynamic_table_of_tfra(tmp_path):
    """Its checkpoint has the ids too."""
    assert take(tmp_path / "v", FOREIGN / "tfra.index") == 0
    assert rows_in(tmp_path / "v") == {7: [1.0, 2.0], 2**40: [5.0, 6.0], -3: [9.0, 10.0]}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.safetensors", b"\xff" * 9, "its header must have"),
        ("a.safetensors", b"\x02\0\0\0\0\0\0\0[]", "cannot be read"),
        ("a.safetensors", b"\x04\0\0\0\0\0\0\0nope", "cannot be read"),
        ("a.npz", b"PK", "cannot be read"),
        ("a.keras", b"PK", "cannot be read"),
        ("a.h5", b"HDF", "cannot be read"),
        ("a.index", b"", "cannot be read"),
    ],
    ids=str,
)
def test_damaged_file_is_one_line(tmp_path, capsys, name, content, said):
    (tmp_path / name).write_bytes(content)
    assert take(tmp_path / "v", tmp_path / name) == 2
    assert said in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


@pytest.mark.parametrize("shape", [[9, 2], [2**80, 2], [-1, 2], ["a"], 7])
def test_header_of_no_array_is_one_line(tmp_path, capsys, shape):
    header = {"embedding": {"dtype": "F32", "shape": shape, "data_offsets": [0, 8]}}
    text = json.dumps(header).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 8)
    assert take(tmp_path / "v", tmp_path / "a.safetensors") == 2
    assert "cannot be read: " in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


def test_variable_whose_bytes_are_gone_is_one_line(tmp_path, capsys):
    for name in ("tfra.index", "tfra.data-00000-of-00001"):
        (tmp_path / name).write_bytes((FOREIGN / name).read_bytes())
    os.truncate(tmp_path / "tfra.data-00000-of-00001", 8)
    for name in ("tfra.data-00000-of-00001", "tfra.index"):
        assert take(tmp_path / "v", tmp_path / "tfra.index") == 2
        assert "tfra.index cannot be read: " in (error := capsys.readouterr().err)
        assert error.count("\n") == 1
        (tmp_path / name).unlink(missing_ok=True)


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]"])
def test_array_without_real_numbers_is_one_line(tmp_path, capsys, dtype):
    np.save(tmp_path / "a.npy", np.ones((3, 2)).astype(dtype))
    assert take(tmp_path / "v", tmp_path / "a.npy") == 2
    assert f"array 'embedding' must have real numbers but has {dtype}" in capsys.readouterr().err


def test_arrays_of_another_shape_are_one_line(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", id=np.arange(3), embedding=np.zeros([4, 2]))
    assert take(tmp_path / "v", tmp_path / "a.npz") == 2
    assert "array 'id' must have the shape [4] but has [3]" in capsys.readouterr().err
    np.save(tmp_path / "a.npy", np.zeros([4, 2]))
    for lines, found in (("1\n2\n", 2), ("1\n2\n3\n4\n5\n", 5)):
        (tmp_path / "ids").write_text(lines)
        assert take(tmp_path / "v", tmp_path / "a.npy", "--ids", tmp_path / "ids") == 2
        said = f"must have an id for each of 4 rows of {tmp_path / 'a.npy'} but has {found}"
        assert said in capsys.readouterr().err
    assert take(tmp_path / "v", FOREIGN / "gensim.vec", "--ids", tmp_path / "ids") == 2
    assert "--ids belongs to an --input of .npy, .npz" in capsys.readouterr().err


@pytest.fixture(scope="module")
def source() -> tf.keras.Model:
    """A model of texts, trained for some steps."""
    lookup = tf.keras.layers.StringLookup(vocabulary=TEXTS, mask_token=None)
    embedding = tf.keras.layers.Embedding(len(TEXTS) + 1, DIM, name="item")
    out = tf.keras.layers.Dense(1, "sigmoid", name="out")
    texts = tf.keras.Input([], dtype="string")
    model = tf.keras.Model(texts, out(embedding(lookup(texts))))
    model.compile(tf.keras.optimizers.Adagrad(0.5), "binary_crossentropy")
    model.fit(tf.constant(TEXTS), np.arange(len(TEXTS)) % 2, epochs=3, batch_size=4, verbose=0)
    return model


class SameNetwork(embedps.ClickModel):
    def __init__(self, kernel: np.ndarray, bias: np.ndarray) -> None:
        super().__init__(label="label")
        self.embeddings = embedps.Embeddings({"C1": DIM})
        given = tf.constant_initializer
        self.out = tf.keras.layers.Dense(
            1, kernel_initializer=given(kernel), bias_initializer=given(bias)
        )

    def logits(self, features, *, training):
        return self.out(self.embeddings(features)["C1"])[:, 0]


def save_checkpoint(model: tf.keras.Model, path: Path) -> list[object]:
    model.save_weights(path / "weights")
    return [path / "weights.index"]


def save_saved_model(model: tf.keras.Model, path: Path) -> list[object]:
    model.save(path / "saved", save_format="tf")
    return [path / "saved" / "variables" / "variables.index"]


def save_h5(model: tf.keras.Model, path: Path) -> list[object]:
    model.save(path / "all.h5")
    return [path / "all.h5", "--tensor", "model_weights/item"]


def save_weights_h5(model: tf.keras.Model, path: Path) -> list[object]:
    model.save_weights(path / "all.weights.h5")
    return [path / "all.weights.h5"]


def save_keras(model: tf.keras.Model, path: Path) -> list[object]:
    model.save(path / "all.keras")
    assert "model.weights.h5" in zipfile.ZipFile(path / "all.keras").namelist()
    return [path / "all.keras"]


@pytest.mark.parametrize(
    "save", [save_checkpoint, save_saved_model, save_h5, save_weights_h5, save_keras]
)
def test_embedding_of_keras_has_its_rows_by_text(tmp_path, source, save):
    lookup, embedding = source.layers[1], source.get_layer("item")
    (tmp_path / "texts").write_text("\n".join(lookup.get_vocabulary()), encoding="utf-8")
    given = save(source, tmp_path)
    ids = ["--text-ids", "--ids", tmp_path / "texts"]
    assert take(tmp_path / "v", *given, *ids, dim=DIM) == 0
    found = rows_in(tmp_path / "v")
    assert [found[fingerprint(text)] for text in TEXTS] == (embedding.get_weights()[0][1:].tolist())


def test_scores_of_the_same_network_are_those_of_keras(tmp_path, source, clicks):
    (tmp_path / "texts").write_text("\n".join(source.layers[1].get_vocabulary()))
    given = [*save_weights_h5(source, tmp_path), "--text-ids", "--ids", tmp_path / "texts"]
    vectors = tmp_path / "v"
    assert main("import", vectors, "--table=C1", f"--embedding-dim={DIM}", "--input", *given) == 0
    weights = source.get_layer("out").get_weights()
    recommender = embedps.Recommender(build=lambda: SameNetwork(*weights))
    fields: dict[str, Any] = {"from": str(vectors)}
    trainer = make_trainer(clicks, tmp_path / "m", recommender=recommender, **fields)
    trainer._loop.save(final=False)
    trainer.close()
    ids = pa.array([fingerprint(text) for text in TEXTS])
    model = embedps.load(tmp_path / "m", data=clicks.directory, recommender=recommender)
    scores = model.predict(pa.table({"C1": ids}))["score"]
    expected = source.predict(tf.constant(TEXTS), verbose=0)[:, 0]
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(scores, expected, rtol=1e-6)

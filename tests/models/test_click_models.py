"""The zoo's models of clicks: equal to NumPy, and trained on every schema that ships."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.data.dataset import MISSING_ID, Dataset
from embedps.data.unit_reader import NUMERICS
from embedps.engine.model_interface import step_loss
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.features.transforms import _cross
from embedps.models import _columns, dcn_v2, deepfm, fm, logistic_regression, wide_deep
from embedps.tables import MinCount, SizeLimit, TimeToLive
from tests import labelled, shipped
from tests.builders import make_trainer, write_dataset

MODULES: dict[str, ModuleType] = {
    module.__name__.rsplit(".", 1)[1]: module
    for module in (logistic_regression, fm, wide_deep, deepfm, dcn_v2)
}
TINY: dict[str, dict[str, Any]] = {
    "logistic_regression": {},
    "fm": {"embedding_dim": 4},
    "wide_deep": {"embedding_dim": 4, "deep_mlp": (8, 8)},
    "deepfm": {"embedding_dim": 4, "deep_mlp": (8,)},
    "dcn_v2": {"embedding_dim": 4, "deep_mlp": (8,), "cross_layers": 2},
}
Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    root = tmp_path_factory.mktemp("shipped")
    return {name: shipped.write_dataset(name, root / name) for name in shipped.NAMES}


def relu(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.maximum(x, 0)


def sigmoid(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return 1 / (1 + np.exp(-x))


class Plain:
    """A model's weights, in the order in which its layers have them, and formulas over these."""

    def __init__(self, model: Any) -> None:
        self._left = {id(v): v.numpy() for v in model.trainable_variables}
        self.model = model

    def take(self, layer: Any) -> list[npt.NDArray[Any]]:
        return [self._left.pop(id(v)) for v in layer.trainable_variables]

    def dense(self, layer: Any, x: npt.NDArray[Any], *, last_relu: bool) -> npt.NDArray[Any]:
        weights = self.take(layer)
        for i in range(0, len(weights), 2):
            x = x @ weights[i] + weights[i + 1]
            x = relu(x) if last_relu or i + 2 < len(weights) else x
        return x

    def linear(self, weights: npt.NDArray[Any], numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        taken = self.take(self.model.linear)
        logits = weights.sum(axis=1) + next(w for w in taken if w.ndim == 0)
        kernels = [w for w in taken if w.ndim == 2]
        return logits + (numbers @ kernels[0])[:, 0] if kernels else logits

    def check_all_taken(self) -> None:
        assert not self._left


def pairs(vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    n = vectors.shape[1]
    products = [(vectors[:, i] * vectors[:, j]).sum(1) for i in range(n) for j in range(i)]
    return np.sum(products, axis=0) if products else np.zeros(len(vectors))


def encoded(
    numbers: npt.NDArray[Any], edges: npt.NDArray[Any], frequencies: npt.NDArray[Any] | None
) -> npt.NDArray[Any]:
    shares = np.zeros((*numbers.shape, edges.shape[1] - 1))
    for j, row in enumerate(edges):
        for k, (low, high) in enumerate(itertools.pairwise(row)):
            if low < high:
                shares[:, j, k] = np.interp(numbers[:, j], [low, high], [0, 1])
    bins = shares.reshape(len(numbers), -1)
    if frequencies is None:
        return bins
    angles = shares.mean(2)[:, :, None] * frequencies
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=2)
    return np.concatenate([bins, waves.reshape(len(numbers), -1)], axis=1)


def plain_logits(
    name: str, config: Any, model: Any, rows: npt.NDArray[Any], numbers: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    plain = Plain(model)
    plain.take(model.numerics) if hasattr(model, "numerics") else None  # has `numbers` encoded
    if name == "dcn_v2":
        if model.bottom is not None:
            numbers = plain.dense(model.bottom, numbers, last_relu=True)
        first = np.concatenate([numbers, rows.reshape(len(rows), -1)], axis=1)
        x = first
        for cross in model.crosses:
            weights = plain.take(cross)
            product = x
            for kernel in weights[:-1]:
                product = product @ kernel
            x = first * (product + weights[-1]) + x
        parallel = config.structure == "parallel"
        deep = plain.dense(model.hidden, first if parallel else x, last_relu=True)
        out = np.concatenate([x, deep], axis=1) if parallel else deep
        logits = plain.dense(model.out, out, last_relu=False)[:, 0]
    elif name == "logistic_regression":
        logits = plain.linear(rows[:, :, 0], numbers)
    else:
        logits = plain.linear(rows[:, :, 0], numbers)
        vectors = rows[:, :, 1:]
        if name in ("fm", "deepfm"):
            logits = logits + pairs(vectors)
        if name in ("wide_deep", "deepfm"):
            x = np.concatenate([vectors.reshape(len(rows), -1), numbers], axis=1)
            deep = plain.dense(model.hidden, x, last_relu=True)
            logits = logits + plain.dense(model.out, deep, last_relu=False)[:, 0]
    plain.check_all_taken()
    return logits


VARIANTS = [
    *((name, {}) for name in MODULES),
    ("logistic_regression", {"numeric_standard": True}),
    ("wide_deep", {"numeric_standard": True}),
    ("wide_deep", {"deep_mlp": ()}),
    ("deepfm", {"dropout": 0.5}),
    ("wide_deep", {"numeric_bins": 3}),
    ("deepfm", {"numeric_bins": 2, "numeric_waves": 3}),
    ("dcn_v2", {"numeric_bins": 4, "numeric_waves": 1}),
    ("dcn_v2", {"cross_rank": 3}),
    ("dcn_v2", {"bottom_mlp": (6, 5)}),
    ("dcn_v2", {"structure": "parallel", "dropout": 0.3}),
]


def test_mlperfs_network_is_had_by_options(datasets: dict[str, Dataset]) -> None:
    dataset = datasets["criteo"]
    config = dcn_v2.Config(
        embedding_dim=128,
        bottom_mlp=(512, 256, 128),
        cross_rank=512,
        deep_mlp=(1024, 1024, 512, 256),
    )
    built = StepModel(dcn_v2.make(config, dataset), dataset)
    width = 27 * 128  # of what the crosses take: 26 features and the bottom's output
    kernels = [v.shape.as_list() for v in built.model.trainable_variables if len(v.shape) == 2]
    bottom = [[2 * 13, 512], [512, 256], [256, 128]]  # and whether each number is missing
    crosses = [[width, 512], [512, width]] * 3
    deep = [[width, 1024], [1024, 1024], [1024, 512], [512, 256], [256, 1]]
    assert sorted(kernels) == sorted([*bottom, *crosses, *deep])


@pytest.mark.parametrize("schema", ["criteo", "movielens_100k"])  # with numbers, and without
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_logits_equal_those_of_numpy(
    datasets: dict[str, Dataset], schema: str, name: str, options: dict[str, Any]
) -> None:
    module, dataset = MODULES[name], datasets[schema]
    config = module.Config(**TINY[name] | options)
    built = StepModel(module.make(config, dataset), dataset)
    rng = np.random.default_rng(3)
    for variable in built.model.trainable_variables:
        variable.assign(rng.normal(0, 0.5, variable.shape))
    numbers = rng.normal(0, 1, (6, len(dataset.numeric))).astype(np.float32)
    dims = {table.name: table.embedding_dim for table in built.tables}
    found = {
        f.name: rng.normal(0, 1, (6, dims[f.table_name])).astype(np.float32) for f in built.features
    }
    missing = numbers.copy()
    missing[:2] = np.nan
    batch = built.columns.sample() | {NUMERICS: tf.constant(missing)}
    if options.get("numeric_standard") and dataset.numeric:
        mean, deviation = _columns.moments(dataset)
        numbers = (numbers - mean) / deviation
    numbers[:2] = 0
    if bins := options.get("numeric_bins"):
        edges = _columns.edges(dataset, bins)
        assert edges is not None
        frequencies = built.model.numerics._frequencies
        assert (frequencies is not None) == (bool(dataset.numeric) and "numeric_waves" in options)
        numbers = encoded(numbers, edges, frequencies)
        numbers[:2] = 0
    numbers = np.concatenate([numbers, np.isnan(missing)], axis=1)
    with built.embeddings.providing({n: tf.constant(v) for n, v in found.items()}):
        logits = built.model.logits(batch, training=False)
    expected = plain_logits(name, config, built.model, np.stack([*found.values()], 1), numbers)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_numbers_are_scaled_by_the_moments_of_training_rows(datasets: dict[str, Dataset]) -> None:
    dataset = datasets["criteo"]
    parts = [pq.read_table(path) for path in dataset.paths("train")]
    mean, deviation = _columns.moments(dataset)
    for j, column in enumerate(dataset.numeric):
        numbers = np.concatenate([part[column.name].to_numpy() for part in parts])
        np.testing.assert_allclose(mean[j], np.nanmean(numbers), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(deviation[j], np.nanstd(numbers) or 1, rtol=1e-5)
    config = logistic_regression.Config(numeric_standard=True, numeric_bins=3)
    with pytest.raises(UsageError, match="numeric_bins is 3: give it 0"):
        StepModel(logistic_regression.make(config, dataset), dataset)


def test_logistic_regression_begins_at_the_base_rate(datasets: dict[str, Dataset]) -> None:
    dataset = datasets["criteo"]
    built = StepModel(logistic_regression.make(logistic_regression.Config(), dataset), dataset)
    chance = 1 / (1 + np.exp(-built.model.linear.bias.numpy()))
    train = dataset.split("train")
    assert 0 < train.positives < train.rows
    np.testing.assert_allclose(chance, train.positives / train.rows, rtol=1e-5)
    alike = dataclasses.replace(train, positives=train.rows)
    only = dataclasses.replace(dataset, splits={**dataset.splits, "train": alike})
    assert _columns.base_rate_logit(only) == 0
    assert _columns.base_rate_logit(dataclasses.replace(dataset, splits={})) == 0


def test_base_rate_is_of_the_labels_that_are_there(tmp_path: Path) -> None:
    columns = labelled.make_columns(640, 3)
    for label in labelled.LABELS[:2]:  # one may be missing, one is soft too
        values = columns[label.name]
        share = np.nanmean(values, dtype=np.float64)
        assert np.isnan(values).mean() > 0.3
        dataset = labelled.write_dataset(tmp_path / label.name, columns, (label,))
        wanted = np.log(share / (1 - share))
        assert _columns.base_rate_logit(dataset) == pytest.approx(wanted)
        shutil.rmtree(tmp_path / label.name / "train")  # as where only the metadata is
        assert _columns.base_rate_logit(dataset) == 0


def test_penalty_of_ids_is_of_the_tables_optimizers(datasets: dict[str, Dataset]) -> None:
    dataset = datasets["criteo"]
    config = logistic_regression.Config(row_l2=30.0, sparse_optimizer="sgd")
    built = StepModel(logistic_regression.make(config, dataset), dataset)
    per_step = 30 / dataset.split("train").rows  # a step has the mean of its rows' losses
    assert built.tables
    assert all(table.optimizer == embedps.SGD(lazy_decay=per_step) for table in built.tables)
    with pytest.raises(UsageError, match="row_l2 must be 0 with ftrl"):
        logistic_regression.Config(row_l2=1.0, sparse_optimizer="ftrl")


@pytest.mark.parametrize("schema", ["criteo", "movielens_100k"])  # with numbers, and without
def test_penalty_of_numbers_is_added_to_what_a_step_minimizes(
    datasets: dict[str, Dataset], schema: str
) -> None:
    dataset, found = datasets[schema], []
    for strength in (0.0, 40.0):
        config = logistic_regression.Config(numeric_l2=strength, numeric_bins=3)
        built = StepModel(logistic_regression.make(config, dataset), dataset)
        linear = built.model.linear
        linear.bias.assign(-2.0)
        weights = np.zeros(0)
        if dataset.numeric:
            weights = np.linspace(-1, 2, int(linear.kernel.shape[0]))
            linear.kernel.assign(weights[:, None])
        batch = built.columns.sample()
        rows = {f.name: tf.ones([len(batch[dataset.label]), 1]) for f in built.features}
        with built.embeddings.providing(rows):
            found.append(step_loss(built.model, batch, targets=built.columns, training=True))
    # The rows that it trains on have the sum of losses; a step has their mean. No bias in it.
    penalty = 40 / 2 * np.sum(weights**2) / dataset.split("train").rows
    assert bool(penalty) == bool(dataset.numeric)
    np.testing.assert_allclose(found[1] - found[0], penalty, rtol=1e-4)


# Each model and each schema once in the quick tests.
EACH_ONCE = {
    (names[i % len(names)], schemas[i % len(schemas)])
    for names, schemas in [([*MODULES], shipped.NAMES)]
    for i in range(max(len(names), len(schemas)))
}


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        pytest.param(*pair, marks=() if pair in EACH_ONCE else pytest.mark.slow)
        for pair in itertools.product(MODULES, shipped.NAMES)
    ],
)
def test_trains_on_every_schema_and_resumes(
    tmp_path: Path, datasets: dict[str, Dataset], name: str, schema: str
) -> None:
    module, dataset = MODULES[name], datasets[schema]
    recommender = module.make(module.Config(**TINY[name]), dataset)
    options: dict[str, Any] = {"eval": "inline", **shipped.LEARN}
    trainer = make_trainer(dataset, tmp_path, recommender=recommender, epochs=4, **options)
    result = trainer.fit().summary
    assert result["finished"]
    assert result["training"]["auc"] > 0.55
    assert result["evaluation"]["auc"] > 0.55
    resumed = make_trainer(dataset, tmp_path, recommender=recommender, epochs=5, **options)
    assert resumed.ledger.num_done == 4 * resumed.ledger.units_per_epoch
    resumed.close()


def test_dropout_acts_in_training_only(datasets: dict[str, Dataset]) -> None:
    dataset = datasets["criteo"]
    # So many that not all units give 0, whatever their first weights.
    config = wide_deep.Config(embedding_dim=4, deep_mlp=(64, 64), dropout=0.5)
    built = StepModel(wide_deep.make(config, dataset), dataset)
    batch = built.columns.sample()
    dims = {table.name: table.embedding_dim for table in built.tables}
    found = {f.name: tf.ones([2, dims[f.table_name]]) for f in built.features}

    def logits(training: bool) -> Any:
        with built.embeddings.providing(found):
            return built.model.logits(batch, training=training).numpy().tolist()

    assert logits(False) == logits(False)
    assert len({tuple(logits(True)) for _ in range(5)}) > 1


def test_logistic_regression_declares_its_policies_of_rows() -> None:
    config = logistic_regression.Config(
        min_count=3, min_count_expire_steps=900, max_table_rows=1000, row_ttl_steps=50
    )
    table = config.tables().table("C1")
    assert table.admission == MinCount(count=3, expire_steps=900)
    assert table.eviction == (TimeToLive(steps=50), SizeLimit(max_rows=1000))
    with pytest.raises(UsageError, match="by min_count or by admit_probability"):
        logistic_regression.Config(min_count=3, admit_probability=0.5)
    with pytest.raises(UsageError, match="min_count_expire_steps is of the counters of min_count"):
        logistic_regression.Config(min_count_expire_steps=900)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(
    ("lack", "message"),
    [
        ({"categorical": ()}, "must have a categorical column"),
        ({"label": "", "labels": ()}, r"must have a label, but the dataset .* has none"),
    ],
)
def test_a_dataset_without_ids_or_a_label_is_refused(
    datasets: dict[str, Dataset], name: str, lack: dict[str, Any], message: str
) -> None:
    module = MODULES[name]
    with pytest.raises(UsageError, match=message):
        module.make(module.Config(), dataclasses.replace(datasets["criteo"], **lack))


def test_bins_have_equally_many_training_rows(datasets: dict[str, Dataset]) -> None:
    dataset = datasets["criteo"]
    edges = _columns.edges(dataset, 4)
    assert edges is not None
    for row, column in zip(edges, dataset.numeric, strict=True):
        numbers = np.concatenate([pq.read_table(p)[column.name] for p in dataset.paths("train")])
        numbers = np.sort(numbers[np.isfinite(numbers)])
        at = np.linspace(0, len(numbers) - 1, 5)
        expected = np.interp(at, np.arange(len(numbers)), numbers)
        np.testing.assert_allclose(row, expected, rtol=1e-6)
    assert _columns.edges(dataset, 0) is None


CROSS = {"cross": ("C1+C2", "C3+C1+C2")}


@pytest.mark.parametrize("name", MODULES)
def test_a_cross_has_the_ids_of_a_schema_s_cross(tmp_path: Path, name: str) -> None:
    dataset = write_dataset(tmp_path, train=(64,), evaluation=(8,))
    built = StepModel(
        MODULES[name].make(MODULES[name].Config(**TINY[name] | CROSS), dataset), dataset
    )
    assert [f.name for f in built.features[-2:]] == ["C1_x_C2", "C3_x_C1_x_C2"]
    ids = [np.array([3, 5, MISSING_ID], np.int64), np.array([7, -9, 1], np.int64)]
    batch = built.columns.sample() | {"C1": tf.constant(ids[0]), "C2": tf.constant(ids[1])}
    made = built.prepare(batch | {"C3": tf.constant(ids[1])}, training=False)
    wanted = _cross([pa.array(each) for each in ids])
    np.testing.assert_array_equal(made["C1_x_C2"], wanted)
    assert made["C1_x_C2"][2] == MISSING_ID


def test_a_cross_has_bins_of_numbers(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, train=(64,), evaluation=(8,))
    names = [column.name for column in dataset.numeric]
    number, width = names[-1], 0.3
    config = fm.Config(embedding_dim=4, cross=(f"C1+{number}/{width}",))
    built = StepModel(fm.make(config, dataset), dataset)
    assert built.features[-1].name == f"C1_x_{number}_by_{width}"
    numbers = np.array([-0.7, -0.1, 0.0, 0.1, 0.31, 7.2, np.nan, np.inf, -np.inf], np.float32)
    matrix = np.zeros([len(numbers), len(names)], np.float32)
    matrix[:, -1] = numbers
    ids = np.full(len(numbers), 5, np.int64)
    batch = {"C1": tf.constant(ids), NUMERICS: tf.constant(matrix)}
    made = built.prepare(batch, training=False)[built.features[-1].name].numpy()
    with np.errstate(invalid="ignore"):
        at = np.clip(np.floor(numbers * np.float32(1 / width)), -(2.0**31), 2.0**31)
    bins = np.where(np.isnan(numbers), MISSING_ID, 2 * np.nan_to_num(at).astype(np.int64))
    np.testing.assert_array_equal(made, _cross([pa.array(ids), pa.array(bins)]))
    assert made[2] == made[3]
    assert len(set(made)) == len(numbers) - 1
    assert [n for n, id_ in zip(numbers, made, strict=True) if id_ == MISSING_ID] == [
        pytest.approx(np.nan, nan_ok=True)
    ]


@pytest.mark.parametrize(("cross", "low", "high"), [((), 0.0, 0.7), (("C1+C2",), 0.9, 1.0)])
def test_a_cross_learns_what_no_single_id_tells(
    tmp_path: Path, cross: tuple[str, ...], low: float, high: float
) -> None:
    """In Keras mode, where no engine prepares a batch; the label is C1 + C2 modulo 2."""
    dataset = write_dataset(tmp_path, train=(4096,), evaluation=(8,))

    def planted(batch: dict[str, Any]) -> dict[str, Any]:
        c1, c2 = batch["C1"] % 6, batch["C2"] % 6
        return {**batch, "C1": c1, "C2": c2, "label": tf.cast((c1 + c2) % 2, tf.float32)}

    model = logistic_regression.make(logistic_regression.Config(cross=cross), dataset).build()
    model.compile(optimizer=tf.keras.optimizers.Adam(0.01))
    batches = embedps.read(dataset, batch_size=64, targets=False).map(planted)
    auc = model.fit(batches, epochs=3, verbose=0).history["auc"][-1]
    assert low <= auc <= high


@pytest.mark.parametrize(
    ("cross", "message"),
    [
        ("C1", r"two or more columns with \+ between them, each once, .* got 'C1'"),
        ("C1+C1", "got 'C1\\+C1'"),
        ("C1+no", "'no' must be a column of one id per row"),
        ("C1+C2,C1+C2", "there is a feature 'C1_x_C2' already"),
        ("C1+I1", "'I1' must have the width of the number's bins, such as I1/0.5"),
        ("C1+I1/0", "'I1/0' must have the width of the number's bins, such as I1/0.5"),
        ("C1+I1/nan", "'I1/nan' must have the width"),
        ("C1+I1/x", "'I1/x' must have the width"),
        ("C1+no/0.5", "'no/0.5' must be a column of one id per row"),
    ],
)
def test_a_cross_that_cannot_be_is_refused(tmp_path: Path, cross: str, message: str) -> None:
    dataset = write_dataset(tmp_path, train=(64,), evaluation=(8,))
    with pytest.raises(UsageError, match=message):
        fm.make(fm.Config(cross=tuple(cross.split(","))), dataset)

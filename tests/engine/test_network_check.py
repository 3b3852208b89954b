"""A user's network trains as in Keras, or is refused before training with a one-line error."""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import NumericFeature
from embedps.engine.network_check import check_step, large_variables
from embedps.engine.random_numbers import reseed_generators
from embedps.engine.recommender import Recommender
from embedps.engine.step_model import StepModel
from embedps.engine.unit_functions import make_eval_unit
from embedps.errors import UsageError
from embedps.storage.file_lock import RUN_LOCK_NAME
from embedps.training.trainer import TrainingError
from tests.builders import SumModel, dataset_fixture, make_trainer, write_dataset
from tests.commands import run_program
from tests.engine.builders import Trained, check_close, check_messages

layers = tf.keras.layers


class Base(SumModel):
    """A layer over everything there is; what comes between is a subclass's."""

    def __init__(self, between: Any = None, **of_last: Any) -> None:
        super().__init__()
        self.between = between
        self.last = layers.Dense(1, **of_last)

    def inside(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        """What the last layer gets of everything, float32 [batch, floats]."""
        if self.between is None:
            return x
        has_mode = "training" in inspect.signature(self.between.call).parameters
        return self.between(x, training=training) if has_mode else self.between(x)

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        x = tf.concat([self.numbers(features), self.rows(features)], axis=1)
        return self.last(self.inside(x, training))[:, 0]


class Counting(tf.keras.layers.Layer):
    """Counts its batches, at once, in a loop or in a branch."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def build(self, shape: Any) -> None:
        self.count = self.add_weight(name="count", shape=[], trainable=False)

    def call(self, x: tf.Tensor, training: Any = None) -> tf.Tensor:
        if not training:
            return x
        if self.where == "loop":
            for _ in tf.range(3):
                self.count.assign_add(1.0)
        elif self.where == "branch":
            if tf.reduce_sum(x) > 0.0:
                self.count.assign_add(1.0)
        else:
            self.count.assign_add(1.0)
        return x


class Table(tf.keras.layers.Layer):
    """Keeps what it saw in a hash table."""

    def build(self, shape: Any) -> None:
        self.seen = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def call(self, x: tf.Tensor, training: Any = None) -> tf.Tensor:
        if training:
            self.seen.insert(tf.constant([1], tf.int64), tf.reduce_sum(x)[None])
        return x


class Known(tf.keras.layers.Layer):
    """Looks up what it knows from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.look_up = layers.IntegerLookup(vocabulary=[1, 2, 3])

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x * tf.cast(self.look_up(tf.cast(x, tf.int64)), tf.float32)


class Elsewhere(Base):
    """Uses a layer that Keras does not know of."""

    def __init__(self) -> None:
        super().__init__()
        hidden = layers.Dense(3)
        self.use = lambda x: hidden(x)

    def inside(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        return self.use(x)


class Unused(Base):
    """Drops what one of its layers computes."""

    def inside(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        self.between(x)
        return x


class Rounded(Base):
    """Has no gradient at all."""

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        return tf.round(super().logits(features, training=training))


class Inner(Base):
    """Calls a layer within a function of its own."""

    def __init__(self, between: tf.keras.layers.Layer) -> None:
        super().__init__(between)
        between.build([None, 23])
        self.inner = tf.function(lambda x, training: between(x, training=training))

    def inside(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        return self.inner(x, training)


class Ignoring(Base):
    """Calls a layer always as in scoring."""

    def inside(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        return self.between(x, training=False)


class Stateless(Base):
    """Draws one mask for ever, or a projection that is meant to stay."""

    def __init__(self, mask: bool) -> None:
        super().__init__()
        self.mask = mask

    def inside(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        if self.mask:
            return tf.nn.experimental.stateless_dropout(x, 0.5, seed=[1, 2])
        return x @ tf.random.stateless_normal([x.shape[1], 4], seed=[1, 2])


REFUSED: dict[str, tuple[Callable[[], SumModel], str]] = {
    **{
        f"assigns in a {where}": (
            lambda where=where: Base(Counting(where)),  # type: ignore[misc]
            r"'.*count:0' of layer 'counting.*' \(Counting\) is updated by the model in a loop, ",
        )
        for where in ("loop", "branch")
    },
    "batch normalization in a function": (
        lambda: Inner(layers.BatchNormalization()),
        r"moving_mean:0' of layer 'batch_norm.*' \(BatchNormalization\) by itself \(op 'batch_norm",
    ),
    "a mode that is ignored": (
        lambda: Ignoring(layers.Dropout(0.5)),
        r"ignores `training`, which layer 'dropout.*' \(Dropout\) needs: pass training=training",
    ),
    "hash table": (lambda: Base(Table()), "updates what it reads by itself .*InsertV2"),
    "unused layer": (
        lambda: Unused(layers.Dense(2)),
        r"variable '.*kernel:0' of layer 'dense.*' \(Dense\) has no gradient",
    ),
    "no gradient": (Rounded, r"of layer 'dense.*' \(Dense\) has no gradient: the loss does not"),
    "layer elsewhere": (Elsewhere, "uses variable '.*kernel:0', which is not among its variables"),
    "one mask": (lambda: Stateless(True), "stateless_dropout.*' draws the same random numbers in"),
    "stateless dropout": (
        lambda: Base(layers.Dropout(0.5, rng_type="stateless")),
        "'dropout.*/.*' draws the same random numbers in every step",
    ),
    "float64": (
        lambda: Base(layers.Dense(2, dtype="float64")),
        r"\(Dense\) must be float32 but is float64",
    ),
}
REFUSED_ON_SERVERS: dict[str, tuple[Callable[[], SumModel], str]] = {
    "fixed seed": (
        lambda: Base(layers.Dropout(0.5, seed=7)),
        "'dropout.*/.*' has a fixed seed, so every worker would draw the same random",
    ),
    "constraint": (
        lambda: Base(layers.Dense(4, kernel_constraint="non_neg")),
        r"variable '.*kernel:0' of layer 'dense.*' \(Dense\) has a constraint",
    ),
}
TAKEN: dict[str, Callable[[], SumModel]] = {
    "batch normalization": lambda: Base(layers.BatchNormalization()),
    "counts in its call": lambda: Base(Counting("call")),
    "frozen batch normalization": lambda: Base(layers.BatchNormalization(trainable=False)),
    "frozen layer that is not used": lambda: Unused(layers.Dense(2, trainable=False)),
    "unused but regularized": lambda: Unused(
        layers.Dense(2, kernel_regularizer="l2", use_bias=False)
    ),
    "fixed projection": lambda: Stateless(False),
    "dropout": lambda: Base(layers.Dropout(0.5)),
    "dropout of a generator": lambda: Base(layers.Dropout(0.5, rng_type="stateful")),
    "table of what is known": lambda: Base(Known()),
    "function of its own": lambda: Inner(layers.Dropout(0.5)),
    "noise": lambda: Base(layers.GaussianNoise(0.1)),
    "a loop": lambda: Base(
        tf.keras.Sequential([layers.Reshape([-1, 1]), layers.GRU(2), layers.LayerNormalization()])
    ),
    "mixed precision": lambda: Base(layers.Dense(4, dtype="mixed_bfloat16"), dtype="float32"),
}


def check(build: Callable[[], SumModel], dataset: Dataset, cluster: Cluster) -> None:
    """What the trainer does at its start."""
    with cluster.scope():
        step = StepModel(Recommender(build=build), dataset)
        check_step(step, cluster.strategy, on_servers=cluster.num_ps > 0)


@pytest.mark.parametrize("name", REFUSED)
def test_network_that_would_train_wrongly_is_refused(dataset, name):
    build, message = REFUSED[name]
    with pytest.raises(UsageError, match=message) as refused:
        check(build, dataset, EmbeddedCluster())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [*TAKEN, *REFUSED_ON_SERVERS])
def test_network_that_trains_well_is_taken(dataset, name):
    check(TAKEN.get(name) or REFUSED_ON_SERVERS[name][0], dataset, EmbeddedCluster())


dataset = dataset_fixture(train=(600,), evaluation=(200,), whole=True)


def test_trainer_refuses_before_it_trains_and_leaves_nothing(tmp_path, dataset):
    recommender = Recommender(build=REFUSED["batch normalization in a function"][0])
    with pytest.raises(UsageError, match="moving_mean"):
        make_trainer(dataset, tmp_path / "m", recommender=recommender)
    assert [path.name for path in (tmp_path / "m").iterdir()] == [RUN_LOCK_NAME]


class Careless(Base):
    """Does not look for what is missing."""

    def numbers(self, features: Mapping[str, Any]) -> tf.Tensor:
        return features["numerics"]


def test_network_that_gives_nan_for_what_is_missing_is_told_apart(tmp_path, dataset):
    careless = Recommender(build=Careless)
    trainer = make_trainer(dataset, tmp_path / "a", recommender=careless)
    with pytest.raises(TrainingError, match="gives NaN where a numeric column is missing: have"):
        trainer.fit()
    numeric = (NumericFeature(name="I1"), NumericFeature(name="I2", missing=60))
    known = dataclasses.replace(dataset, numeric=numeric)
    with pytest.raises(UsageError, match="is missing, as 'I2' is in 60 rows"):
        make_trainer(known, tmp_path / "b", recommender=careless)
    make_trainer(known, tmp_path / "c", recommender=Recommender(build=Base))


# ---- losses and modes --------------------------------------------------------------------------


class Regularized(Base):
    """Adds losses of a variable, of an activation and in a call; has a mode."""

    def __init__(self) -> None:
        super().__init__(
            layers.Dense(4, kernel_regularizer=tf.keras.regularizers.L2(0.1)),
            activity_regularizer=tf.keras.regularizers.L1(0.2),
        )
        self.penalty = Penalty()

    def rows(self, features: Mapping[str, Any]) -> tf.Tensor:
        return self.penalty(super().rows(features))

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        return super().logits(features, training=training) + (1.0 if training else 0.0)


class Penalty(tf.keras.layers.Layer):
    """Adds a loss of its input."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        self.add_loss(0.3 * tf.reduce_mean(x**2))
        return x


def make_parts(
    build: Callable[[], SumModel], dataset: Dataset, cluster: Cluster, **fields: Any
) -> Trained:
    return Trained(Recommender(build=build, **fields), dataset, cluster, seed=3)


def test_added_losses_are_minimized_and_the_log_loss_is_reported(dataset):
    cluster = EmbeddedCluster()
    parts = make_parts(Regularized, dataset, cluster)
    before = [v.numpy() for v in parts.model.trainable_variables]
    counts = parts.run(parts.make_unit(100), *parts.arguments(100, rate=1e-30))
    # The same in plain Keras.
    plain = make_parts(Regularized, dataset, cluster)
    batch_input = plain.step.input(batch_rows=100, shuffle_rows=0)
    path, first, rows, *_ = plain.arguments(100)
    batch = batch_input.next(batch_input.open(path, first, rows))
    rows_of = plain.collection.combine(plain.collection.lookup(batch.columns, insert=True))
    plain.model._clear_losses()
    with tf.GradientTape() as tape, plain.step.embeddings.providing(rows_of):
        logits = plain.model.logits(batch.columns, training=True)
        log_losses = tf.keras.losses.binary_crossentropy(
            batch.columns["label"][:, None], logits[:, None], from_logits=True
        )
        assert len(plain.model.losses) == 3
        total = tf.reduce_mean(log_losses) + tf.add_n(plain.model.losses)
    gradients = tape.gradient(total, plain.model.trainable_variables)
    for old, new, gradient in zip(before, parts.model.trainable_variables, gradients, strict=True):
        np.testing.assert_allclose(new.numpy(), old - 0.1 * gradient.numpy(), atol=1e-6)
    np.testing.assert_allclose(counts["click/0"][2], tf.reduce_sum(log_losses), rtol=1e-5)
    assert float(total) > float(tf.reduce_mean(log_losses)) + 0.01


class Summing(SumModel):
    """Has no variable."""

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        return tf.reduce_sum(self.rows(features), axis=1)


def test_network_without_variables_trains_the_rows(tmp_path, dataset):
    summing = Recommender(build=Summing)
    trained = make_trainer(dataset, tmp_path, recommender=summing, dense_optimizer="adam")
    assert trained.fit().summary["training"]["logloss"] < 0.75


class Projecting(Base):
    """Draws a constant when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = tf.random.normal([21 + 2, 4])

    def inside(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        return x @ self.projection


def test_resumed_run_makes_its_network_by_the_same_seed(tmp_path, dataset):
    made = []

    def build() -> tf.keras.Model:
        made.append(Projecting())
        return made[-1]

    make_trainer(dataset, tmp_path, recommender=Recommender(build=build)).fit()
    make_trainer(dataset, tmp_path, recommender=Recommender(build=build), epochs=2).close()
    np.testing.assert_array_equal(made[0].projection, made[1].projection)


def test_scoring_is_in_the_other_mode(dataset):
    parts = make_parts(Regularized, dataset, EmbeddedCluster())
    unit_input = parts.step.input(batch_rows=600, shuffle_rows=0)
    evaluate: Any = make_eval_unit(parts.step, parts.collection, unit_input)
    path, first, rows, *_ = parts.arguments()
    scored = evaluate(path, first, rows)["click/0"][3]
    parts.model.last.bias.assign([1.0])
    with_one = evaluate(path, first, rows)["click/0"][3]
    parts.model.last.bias.assign([0.0])
    # Rows that are made are not the zeros of those that are absent, but nearly.
    trained = parts.run(parts.make_unit(600))["click/0"][3]
    np.testing.assert_allclose(trained, with_one, rtol=0.02)
    assert abs(float(trained - scored)) > 50


# ---- random numbers ----------------------------------------------------------------------------


def masked() -> tf.keras.Model:
    """A network whose loss tells which of its inputs were dropped."""
    return Base(layers.Dropout(0.5))


class Drawing(Base):
    """Draws noise from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = tf.random.Generator.from_seed(1)

    def inside(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        return x + self.generator.normal(tf.shape(x)) if training else x


def test_generators_are_reseeded_by_the_seed_and_the_step(dataset):
    for build in (TAKEN["dropout of a generator"], Drawing):
        model = make_parts(build, dataset, EmbeddedCluster()).model
        (generator,) = (
            getattr(value, "_generator", value)
            for layer in (model, *model.submodules)
            for value in vars(layer).values()
            if isinstance(getattr(value, "_generator", value), tf.random.Generator)
        )
        states = []
        for seed, step in ((3, 7), (3, 8), (4, 7), (3, 7)):
            reseed_generators(model, seed, step)
            states.append(tuple(generator.state.numpy().tolist()))
        assert len({*states}) == 3
        assert states[0] == states[3]


def test_masks_differ_by_step_attempt_and_run_and_follow_from_the_seed(tmp_path, dataset):
    cluster = EmbeddedCluster(num_workers=2)
    seen = {}
    for run in ("a", "b"):
        parts = make_parts(masked, dataset, cluster)
        parts.optimizer.learning_rate.assign(0.0)
        unit = parts.make_unit(600)  # one step
        arguments = parts.arguments(rate=1e-30)
        seen[run] = [float(parts.run(unit, *arguments)["click/0"][2]) for _ in range(4)]
    assert len(set(seen["a"])) == 4
    assert seen["b"] == seen["a"]

    def losses(model_dir: Path, build: Callable[[], SumModel], *epochs: int) -> list[float]:
        model = Recommender(build=build)
        fields: dict[str, Any] = {"sparse_learning_rate": 1e-30, "dense_learning_rate": 1e-30}
        fields |= {"batch_size": 600, "unit_rows": 600, "shuffle": False, "dense_optimizer": "sgd"}
        return [
            make_trainer(dataset, model_dir, recommender=model, epochs=n, **fields)
            .fit()
            .summary["training"]["logloss"]
            for n in epochs
        ]

    for build in (REFUSED_ON_SERVERS["fixed seed"][0], Drawing):
        first, resumed = losses(tmp_path / build.__name__, build, 1, 2)
        assert resumed != first, build
    assert losses(tmp_path / "again", build, 1, 2) == [first, resumed]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_servers_and_workers_do_the_same(tmp_path):
    run_program("-m", "tests.engine.test_network_check", tmp_path)


def check_cluster(folder: Path) -> None:
    """Checks refusals, losses and masks on 2 parameter servers and 2 workers."""
    dataset = write_dataset(folder / "data", train=(600,), whole=True)
    remote = LocalCluster(num_ps=2, num_workers=2, log_dir=folder / "logs")
    here = EmbeddedCluster(num_shards=2)
    try:
        for name, (build, message) in (REFUSED | REFUSED_ON_SERVERS).items():
            with pytest.raises(UsageError, match=message):
                check(build, dataset, remote)
            print(name, "is refused", flush=True)
        for name, build in TAKEN.items():
            check(build, dataset, remote)
            print(name, "is taken", flush=True)
        for wire_dtype, tolerance in (("float32", 1e-5), ("bfloat16", 0.02)):
            results = []
            for cluster in (remote, here):
                parts = make_parts(Regularized, dataset, cluster, wire_dtype=wire_dtype)
                unit = parts.make_unit()
                if cluster is remote:  # whatever is computed of a variable, it is sent once
                    check_messages(unit, parts.arguments(), 2)
                losses = parts.run(unit)["click/0"][2]
                results.append((losses, [v.numpy() for v in parts.model.variables]))
            (loss, weights), (expected, expected_weights) = results
            np.testing.assert_allclose(loss, expected, rtol=tolerance)
            check_close(weights, expected_weights, rtol=tolerance, atol=tolerance)
        for name in ("dropout", "dropout of a generator"):
            parts = make_parts(TAKEN[name], dataset, remote)
            parts.optimizer.learning_rate.assign(0.0)
            with remote.scope():
                reseed_generators(parts.model, 3, 7)
            unit, arguments = parts.make_unit(600), parts.arguments(rate=1e-30)
            runs = [remote.schedule(unit, arguments) for _ in range(16)]
            losses = [float(remote.fetch(run)["click/0"][2]) for run in runs]
            workers = {run.worker for run in runs}
            assert workers == {0, 1}, workers
            assert len(set(losses)) == 16, losses
    finally:
        remote.close()
        here.close()


if __name__ == "__main__":
    check_cluster(Path(sys.argv[1]))


def test_variables_that_should_be_tables_are_told_by_name():
    sizes = {"a/kernel": 2**26 - 1, "b/embeddings": 2**26, "bias": 1}
    named: dict[str, Any] = {name: tf.TensorSpec([size]) for name, size in sizes.items()}
    [line] = large_variables(named)
    assert line.startswith("variable 'b/embeddings' of the network has 256 MiB on one parameter ")
    assert "as a table of embedps.Embeddings it would be divided" in line

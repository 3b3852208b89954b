"""config.json: what a run writes, and files that were written before options were in groups."""

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest
import tensorflow as tf

from embedps.engine.dense_optimizer import NUM_OPTIMIZER_SLOTS
from embedps.errors import UsageError
from embedps.models import dlrm
from embedps.run.checkpoint_config import CheckpointConfig
from embedps.run.cluster_config import ClusterConfig
from embedps.run.config import TrainConfig
from embedps.run.evaluation_config import EvaluationConfig
from embedps.run.optimizer_config import DenseOptimizer, OptimizerConfig
from embedps.run.run_config import EARLIER_NAMES, FILE_NAME, RunConfig, read_run
from tests.builders import TINY_DLRM

STORED = Path(__file__).parent / "stored" / FILE_NAME  # by the commit before the groups


def test_stored_config_of_before_the_groups_is_read(tmp_path):
    shutil.copy(STORED, tmp_path)
    run = read_run(tmp_path)
    assert run.model_config == dlrm.Config(embedding_dim=8, top_mlp=(32, 16))
    assert run.config == TrainConfig(
        model="dlrm",
        data="data/set",
        model_dir="m",
        epochs=3,
        optimizer=OptimizerConfig(sparse_learning_rate=0.1, dense_optimizer="adagrad"),
        cluster=ClusterConfig(num_ps=2, num_workers=3, num_shards=4, overlap=True),
        checkpoint=CheckpointConfig(
            delta_steps=7,
            rebase="intermittent",
            row_encoding="int8",
            slot_encoding="bfloat16",
            keep_best=2,
        ),
        evaluation=EvaluationConfig(
            mode="inline", every_units=5, metric="logloss", stop_patience=4, reduce_patience=2
        ),
    )


def test_config_that_is_written_now_is_the_stored_one(tmp_path):
    shutil.copy(STORED, tmp_path)
    written = json.loads(json.dumps(read_run(tmp_path).to_json()))
    stored = json.loads(STORED.read_text())
    assert written.keys() == stored.keys()
    for part, values in stored.items():  # options that came since have their defaults
        assert {name: written[part][EARLIER_NAMES.get(name, name)] for name in values} == values


def test_config_that_is_written_is_read_again(tmp_path):
    config = TrainConfig(
        model="dlrm",
        data="d",
        model_dir=str(tmp_path),
        cluster=ClusterConfig(num_ps=2),
        checkpoint=CheckpointConfig(row_encoding="int4"),
    )
    run = RunConfig(config=config, model_config=TINY_DLRM)
    run.save()
    assert read_run(tmp_path) == run


def test_options_by_flag_name_make_the_same_config():
    config = TrainConfig.from_options(data="d", model_dir="m", num_ps=2, eval="none", delta_secs=3)
    assert config == TrainConfig(
        data="d",
        model_dir="m",
        cluster=ClusterConfig(num_ps=2),
        checkpoint=CheckpointConfig(delta_secs=3),
        evaluation=EvaluationConfig(mode="none"),
    )
    assert TrainConfig.from_options(**config.to_options()) == config


def test_unknown_option_is_refused():
    with pytest.raises(TypeError, match="TrainConfig has no option 'num_psx'"):
        TrainConfig.from_options(data="d", model_dir="m", num_psx=2)


def test_group_must_be_its_config():
    with pytest.raises(UsageError, match="cluster must be a ClusterConfig but got 2"):
        TrainConfig(data="d", model_dir="m", cluster=2)  # type: ignore[arg-type]


def test_dense_optimizers_of_the_flag_are_those_that_there_are():
    names = {name.lower() for name in vars(tf.keras.optimizers)}
    assert set(NUM_OPTIMIZER_SLOTS) < set(get_args(DenseOptimizer)) < names

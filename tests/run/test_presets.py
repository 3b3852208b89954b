"""A preset is a set of defaults: flags and files win over it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from embedps.data.dataset_metadata import NumericFeature
from embedps.errors import UsageError
from embedps.run.presets import PRESETS
from embedps.run.run_flags import RunFlags
from embedps.train import parse
from tests.builders import make_listed

MODELS = [
    "dlrm",
    "mmoe",
    "ple",
    "esmm",
    "din",
    "two_tower",
    "sasrec",
    "logistic_regression",
    "fm",
    "wide_deep",
    "deepfm",
    "dcn_v2",
]
REQUIRED = ["--data=DATA", "--model-dir=MODEL"]


@pytest.mark.parametrize("model", MODELS)
def test_small_gives_each_model_its_own_options(model: str) -> None:
    run = parse([*REQUIRED, f"--model={model}", "--preset=small"])
    assert run.config.batch_size == 256
    assert run.config.evaluation.mode == "inline"
    assert run.config.optimizer.schedule == "linear"
    rate = 0.3 if model in ("fm", "deepfm") else 1.0  # products of rows need a lower one
    assert run.config.optimizer.sparse_learning_rate == rate
    for name, value in PRESETS["small"].items():
        if hasattr(run.model_config, name):
            assert getattr(run.model_config, name) == value
    assert getattr(run.model_config, "tower_mlp", ()) in ((), (32,))  # not of the preset


def test_a_preset_stops_by_rows_of_its_own_unless_the_run_cannot_be_scored_on_them() -> None:
    asked = parse([*REQUIRED, "--preset=small", "--eval=none"]).config.evaluation
    assert (asked.inner_share, asked.metric, asked.end_with) == (0.1, "inner_loss", "best")
    assert asked.stop_patience
    for flags in (["--eval=sidecar"], ["--inner-share=0"], ["--watch=D", "--eval=none"]):
        asked = parse([*REQUIRED, "--preset=small", *flags]).config.evaluation
        assert (asked.inner_share, asked.stop_patience, asked.end_with) == (0, 0, "last")
        assert asked.metric == "auc"


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (
            [],
            "inner_loss on 10% of the rows, which it does not train on, was worse than its best by "
            "more than 3% in 3 scorings in a row",
        ),
        (["--inner-share=0"], "the run watches no rows of its own"),
    ],
)
def test_a_preset_says_in_one_line_what_it_chose(flags: list[str], wanted: str) -> None:
    read = RunFlags([*REQUIRED, "--preset=small", "--batch-size=64", *flags], "train", "")
    read.read()
    assert wanted in read.preset_line
    assert "batches of 64, at most 20 epochs" in read.preset_line
    assert "\n" not in read.preset_line


def test_a_line_tells_what_of_numbers_was_asked_of_data_without() -> None:
    bare = make_listed()
    schema = {**bare.schema, "x": "float"}
    with_numbers = dataclasses.replace(bare, numeric=(NumericFeature(name="x"),), schema=schema)
    model = [*REQUIRED, "--model=logistic_regression", "--preset=small"]
    for asked, wanted in (
        ([], ""),
        (["--numeric-standard", "--numeric-bins=0"], "--numeric-standard: no effect, as "),
        (["--numeric-l2=3", "--numeric-bins=4"], "--numeric-bins, --numeric-l2: no effect, as "),
    ):
        read = RunFlags([*model, *asked], "train", "")
        read.read()
        assert read.without_effect(bare).startswith(wanted)
        assert bool(read.without_effect(bare)) == bool(wanted)
        assert read.without_effect(with_numbers) == ""


def test_flags_and_files_win_over_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("batch_size = 64\nembedding_dim = 5\n[evaluation]\nstop_patience = 1\n")
    arguments = [*REQUIRED, "--model=wide_deep", "--preset=small", f"--config={file}"]
    run = parse([*arguments, "--epochs=2", "--deep-mlp=9"])
    assert (run.config.batch_size, run.config.epochs) == (64, 2)
    assert run.config.evaluation.stop_patience == 1
    assert run.model_config.embedding_dim == 5
    assert run.model_config.deep_mlp == (9,)
    assert run.model_config.dropout == PRESETS["small"]["dropout"]


def test_an_unknown_preset_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SystemExit, UsageError)) as raised:
        parse([*REQUIRED, "--preset=tiny"])
    assert "small" in capsys.readouterr().err + str(raised.value)


def test_without_a_preset_the_defaults_are_as_before() -> None:
    run = parse([*REQUIRED, "--model=dlrm"])
    assert run.config.batch_size == 2048
    assert run.model_config.embedding_dim == 16


def test_retrieval_needs_no_flag_beside_it_and_is_of_two_towers_only() -> None:
    read = RunFlags([*REQUIRED, "--model=two_tower", "--preset=retrieval", "--epochs=2"], "t", "")
    run = read.read()
    told = {**PRESETS["retrieval"], "epochs": 2}
    places = (run.config, run.config.optimizer, run.config.evaluation, run.model_config)
    got = {name: getattr(p, name) for name in told for p in places if hasattr(p, name)}
    assert got == {name: value for name, value in told.items() if name != "eval"}
    assert run.config.evaluation.mode == "inline"
    assert "2 epochs" in read.preset_line
    assert "at 1.6 with schedule linear" in read.preset_line
    with pytest.raises(UsageError, match="must be of two_tower, but --model is dlrm"):
        parse([*REQUIRED, "--model=dlrm", "--preset=retrieval"])

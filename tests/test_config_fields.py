"""Numbers and paths that a config may not hold: one line, from a flag, a file or Python."""

import argparse
import dataclasses
import functools
import json
import math
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedps import config_fields, train
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.config_fields import MAX_COUNT, MAX_SECS
from embedps.console import flags
from embedps.console.command_line import Parser
from embedps.console.flags import flag_name
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.models import dlrm
from embedps.run.config import TrainConfig
from embedps.run.optimizer_config import MAX_RATE
from embedps.storage.object_store import as_path
from embedps.training.trainer import Trainer, TrainingError
from tests.builders import make_dlrm, write_dataset

REQUIRED: dict[str, Any] = {"data": "d", "model_dir": "m"}
NUMBERS = (
    *("0", "-1", "-0.0", "5e-324", "1e308", "1e400", "-1e400", "nan", "-nan", "inf", "-inf"),
    *(str(n) for n in (2**31, 2**32, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 2**70, 10**400)),
    "9" * 5000,
)
CONFIGS = (TrainConfig, dlrm.Config)


def plain(hint: Any) -> Any:
    """The type of a field's value, without None; a Literal's is str."""
    kind = config_fields.without_none(hint)
    return str if typing.get_origin(kind) is typing.Literal else kind


def of_kind(*kinds: type) -> list[tuple[type, str, type]]:
    found: list[tuple[type, str, type]] = []
    for config in CONFIGS:
        for option in config_fields.options_of(config):
            kind = plain(option.hint)
            kind = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
            if kind in kinds:
                found.append((config, option.name, kind))
    return found


def is_tuple(config: type, name: str) -> bool:
    (option,) = (o for o in config_fields.options_of(config) if o.name == name)
    return typing.get_origin(option.hint) is tuple


def one_line(error: UsageError) -> str:
    (line,) = str(error).splitlines()
    assert len(line) < 6000  # argparse repeats what it cannot read
    return line


def outcome(make) -> str:
    """Makes a config: what it refuses, or nothing. What it takes goes to config.json and back."""
    try:
        config = make()
    except UsageError as error:
        return one_line(error)
    values = config_fields.values_of(config)
    infinite = [n for n, v in values.items() if isinstance(v, float) and not math.isfinite(v)]
    assert infinite in ([], ["max_read_cost"])
    for option in config_fields.options_of(type(config)):
        kept, value = plain(option.hint), values[option.name]
        assert value is None or isinstance(value, typing.get_origin(kept) or kept)
    again = json.loads(json.dumps(values))
    assert config_fields.make(type(config), again) == config
    return ""


@functools.cache
def parser_of_train() -> argparse.ArgumentParser:
    """The flags of `embedps.train`, made once: it makes them anew for each command."""
    parser = Parser(prog="train")
    flags.add_file_flag(parser)
    for config in CONFIGS:
        flags.add_flags(parser, config)
    return parser


def read(config: type, *arguments: str) -> Any:
    given = parser_of_train().parse_args(arguments)
    return flags.make(config, given, flags.read_file(given.config, *CONFIGS))


@pytest.mark.parametrize(
    ("config", "name", "kind"), of_kind(int, float), ids=lambda x: getattr(x, "__name__", x)
)
def test_any_number_is_taken_or_refused_in_one_line(tmp_path, config, name, kind):
    needed = REQUIRED if config is TrainConfig else {}
    for text in NUMBERS:
        with_flag = [f"{flag_name(n)}={v}" for n, v in {**REQUIRED, name: text}.items()]
        of_flag = outcome(lambda given=with_flag: read(config, *given))
        path = tmp_path / "config.toml"
        literal = f"[{text}]" if is_tuple(config, name) else text
        path.write_text(f'data = "d"\nmodel_dir = "m"\n{name} = {literal}\n')
        of_file = outcome(lambda file=path: read(config, f"--config={file}"))
        number: float = float(text)
        if text.lstrip("-").isdigit() and len(text) <= 4300:
            number = int(text)
        value = (number,) if is_tuple(config, name) else number
        of_python = outcome(lambda given=value: config_fields.make(config, {**needed, name: given}))
        for each in (of_flag, of_file, of_python):
            assert not each or name in each.replace("-", "_") or "TOML" in each
        if len(text) < 400:  # a float of more digits is infinite, an integer of them is none
            assert bool(of_flag) == bool(of_file) == bool(of_python), text


@pytest.mark.parametrize(
    ("config", "name", "kind"),
    of_kind(int, float, str, bool),
    ids=lambda x: getattr(x, "__name__", x),
)
def test_value_of_another_type_is_refused_from_python(config, name, kind):
    needed = REQUIRED if config is TrainConfig else {}
    for value in (b"x", object(), [], {}, 1j, "1", 3, 10**5000, True, np.float32("nan")):
        outcome(lambda given=value: config_fields.make(config, {**needed, name: given}))
    wrong = {int: "1", float: "1.0", str: 1, bool: 1}[kind]
    message = outcome(lambda: config_fields.make(config, {**needed, name: wrong}))
    assert message.startswith(f"{name} must be ")


def test_numbers_of_numpy_lists_and_paths_become_what_they_stand_for(tmp_path):
    numbers: dict[str, Any] = {"epochs": np.int64(3), "delta_secs": np.float32(0.5)}
    config = TrainConfig.from_options(data=tmp_path, model_dir=tmp_path / "m", **numbers)
    assert (config.data, config.model_dir) == (str(tmp_path), str(tmp_path / "m"))
    assert (type(config.epochs), type(config.checkpoint.delta_secs)) == (int, float)
    assert json.loads(json.dumps(dataclasses.asdict(config)))["epochs"] == 3
    layers: Any = [np.int32(8), 4]
    assert dlrm.Config(top_mlp=layers).top_mlp == (8, 4)


@pytest.mark.parametrize("seed", [-1, 2**32, 2**63, 2**70])
def test_seed_is_of_32_bits(seed):
    with pytest.raises(UsageError, match=r"seed must be at (least 0|most 4294967295) but got"):
        TrainConfig.from_options(**REQUIRED, seed=seed)


BAD_PATHS = ("", " ", "\t\n", "a\0b", "\udcff")


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_that_name_nothing_are_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for make in (
        as_path,
        CheckpointDirectory,
        Dataset.open,
        lambda given: TrainConfig.from_options(data="d", model_dir=given),
        lambda given: TrainConfig.from_options(data=given, model_dir="m"),
        lambda given: TrainConfig.from_options(data="d", model_dir="m", model=given),
        lambda given: flags.read_file(given),
        lambda given: train.parse([f"--data={given}", "--model-dir=m"]),
        lambda given: train.parse(["--data=d", f"--model-dir={given}"]),
        lambda given: train.parse(["--data=d", "--model-dir=m", f"--model={given}"]),
        lambda given: train.parse(["--data=d", "--model-dir=m", f"--config={given}"]),
    ):
        with pytest.raises(UsageError) as refused:
            make(path)
        assert len(str(refused.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_path_of_a_url_or_a_file_may_have_no_nul_either(tmp_path):
    for location in ("file:///a%00b", "s3://bucket/a\0b", Path("a\0b")):
        with pytest.raises(UsageError, match="must not have a NUL"):
            as_path(location)
    path = tmp_path / "config.toml"
    path.write_text('data = "a\\u0000b"\nmodel_dir = "m"\n')
    with pytest.raises(UsageError, match="data must not have a NUL"):
        train.parse([f"--config={path}"])
    path.write_text('data = "d"\nmodel_dir = "m"\nmodel = ""\n')
    with pytest.raises(UsageError, match="--model must be a module's name but got ''"):
        train.parse([f"--config={path}"])


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Dataset:
    return write_dataset(
        tmp_path_factory.mktemp("small") / "set", train=(12, 12), evaluation=(100,)
    )


def edges(key: str, **more: float) -> dict[str, Any]:
    """The last value that each of TrainConfig's numbers may have, to one side."""
    found: dict[str, Any] = {}
    for option in config_fields.options_of(TrainConfig):
        metadata = option.field.metadata
        bound = metadata.get(key)
        if bound is not None:
            found[option.name] = bound
        elif key == "least" and "above" in metadata:
            found[option.name] = math.nextafter(metadata["above"], math.inf)
    return {**found, **more}


def test_run_with_the_largest_numbers_trains(tmp_path, small):
    """But for what would take a machine's threads and cores, or for ever."""
    values = edges(
        "most",
        epochs=1,
        num_ps=0,
        num_workers=1,
        num_shards=2,
        replicas=1,
        min_workers=0,
        backup_workers=0,
        sync_group_size=0,
        reduce_factor=0.999,
        max_memory_bytes=0,
        min_delta=1e308,
        inner_fold=1,  # half of the rows is left out
    )
    values |= dict.fromkeys(
        ("sparse_learning_rate", "dense_learning_rate", "dense_weight_decay"), 0.01
    )
    assert values["seed"] == 2**32 - 1
    assert values["batch_size"] == values["unit_rows"] == MAX_COUNT
    assert values["wait_secs"] == MAX_SECS
    config = TrainConfig.from_options(
        data=str(small.directory), model_dir=str(tmp_path / "m"), eval="inline", **values
    )
    summary = Trainer(make_dlrm(small), small, config).fit().summary
    assert summary["finished"]
    assert summary["examples"] == 12  # inner_share leaves half of the rows


def test_run_with_the_smallest_numbers_trains(tmp_path, small):
    values = edges("least")
    assert values["delta_secs"] == 5e-324
    values |= {"eval_units": 1, "max_secs_without_checkpoint": 60.0}
    config = TrainConfig.from_options(
        data=str(small.directory), model_dir=str(tmp_path / "m"), eval="inline", **values
    )
    summary = Trainer(make_dlrm(small), small, config).fit().summary
    assert (summary["finished"], summary["examples"]) == (True, 24)


def test_learning_rate_that_leaves_no_numbers_is_one_error(tmp_path, small):
    config = TrainConfig.from_options(
        data=str(small.directory),
        model_dir=str(tmp_path / "m"),
        eval="none",
        epochs=5,
        batch_size=4,
        sparse_learning_rate=MAX_RATE,
        dense_learning_rate=MAX_RATE,
        dense_optimizer="sgd",
    )
    with pytest.raises(TrainingError, match="the loss is not a number"):
        Trainer(make_dlrm(small), small, config).fit()

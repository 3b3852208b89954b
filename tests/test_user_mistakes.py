"""What a user gets wrong: one clear line on stderr, exit code 2 or 1, never a traceback.

The commands run in this process, by `command_line.run` as ever; a few also run as processes.
"""

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedps import evaluate, server
from embedps import train as train_command
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.errors import DimMismatchError
from embedps.evaluation.loaded_model import load
from embedps.models import fm
from embedps.run.run_config import RunConfig
from embedps.serving.export_model import export_model
from tests import forked
from tests.builders import (
    ROOT,
    TINY_DLRM,
    TINY_DLRM_FLAGS,
    dataset_fixture,
    latest,
    make_config,
    make_trainer,
    write_dataset,
)

dataset = dataset_fixture()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, dataset) -> Path:
    """A finished run of the tiny DLRM, as the command leaves it but for its scores."""
    model_dir = tmp_path_factory.mktemp("trained") / "model"
    make_trainer(dataset, model_dir).fit()
    return model_dir


@pytest.fixture(name="fails")
def make_fails(capfd):
    """Runs a command that must fail with a code; gives its one line."""

    def fails(main, *arguments, codes=(2,)) -> str:
        capfd.readouterr()
        assert command_line.run(main, [*map(str, arguments)]) in codes
        stderr = capfd.readouterr().err
        assert "Traceback" not in stderr
        (line,) = [each for each in stderr.splitlines() if not is_tensorflows(each)]
        assert line.startswith("embedps: ")
        return line

    return fails


def is_tensorflows(line: str) -> bool:
    """A C++ log line: of a process that, unlike a command's, TensorFlow was loaded in before."""
    return line.startswith(("I0", "W0", "E0", "2")) and "]" in line


def train_flags(data, model_dir, *more):
    same = ["--eval=none", "--batch-size=64", "--unit-rows=512"]
    return [f"--data={data}", f"--model-dir={model_dir}", *TINY_DLRM_FLAGS, *same, *more]


def train(data, model_dir, *more):
    return train_command.main, *train_flags(data, model_dir, *more)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--batch-size=many"], "--batch-size: invalid int value: 'many'"),
        (["--batch-size=0"], "batch_size must be at least 1 but got 0"),
        (["--unit-rows=63"], "unit_rows must be at least the batch size 64 but got 63"),
        (["--dense-optimizer=nadam"], "--dense-optimizer: invalid choice: 'nadam'"),
        (["--embedding-dim=0"], "embedding_dim must be at least 1 but got 0"),
        (["--sparse-optimizer=momentum"], "momentum"),
        (["--model=dcnn"], "--model dcnn: there is no module dcnn on Python's path"),
        (["--model=no.such.module"], "--model no.such.module: there is no module no.such.module"),
        (["--model=../dlrm"], "--model must be a module's name but got '../dlrm'"),
        (["--model=embedps.errors"], "embedps.errors must have a dataclass Config and make"),
        (["--config=absent.toml"], "--config absent.toml must be a readable TOML file"),
    ],
)
def test_bad_flag_is_refused_with_code_2(tmp_path, dataset, fails, more, message):
    assert message in fails(*train(dataset.directory, tmp_path / "m", *more))
    assert not (tmp_path / "m").exists()


def test_required_flag_must_be_given(fails):
    assert fails(train_command.main) == "embedps: --data is required"


def test_model_field_named_like_a_flag_is_refused(tmp_path, monkeypatch, fails):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "clashing.py").write_text(
        "import dataclasses\n\n"
        "@dataclasses.dataclass(frozen=True, kw_only=True)\n"
        "class Config:\n    seed: int = 0\n\n"
        "def make(config, dataset):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    line = fails(train_command.main, "--model=own.clashing", "--data=d", "--model-dir=m")
    assert "own.clashing.Config has a field that is a flag already" in line
    assert "--seed" in line


def test_missing_dataset_is_named(tmp_path, fails):
    assert f"{tmp_path}/no: no such dataset directory" in fails(
        *train(tmp_path / "no", tmp_path / "m"), codes=(1,)
    )
    assert not (tmp_path / "m").exists()


def test_directory_without_its_json_is_no_dataset(tmp_path, dataset, fails):
    shutil.copytree(dataset.directory, tmp_path / "set")
    (tmp_path / "set" / "_dataset.json").unlink()
    line = fails(*train(tmp_path / "set", tmp_path / "m"), codes=(1,))
    assert "_dataset.json: absent" in line
    assert "python -m embedps.pipelines.criteo" in line


def test_absent_or_short_shard_is_named(tmp_path, dataset, fails):
    shutil.copytree(dataset.directory, tmp_path / "set")
    shard = tmp_path / "set" / "train" / "shard-00001-of-00002.parquet"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    flags = train_flags(tmp_path / "set", tmp_path / "m")
    line = fails(train_command.main, *flags, codes=(1,))
    assert str(shard) in line
    assert f"{len(data)} bytes" in line
    assert line.endswith("make the dataset again")
    shard.unlink()
    assert str(shard) in fails(train_command.main, *flags, codes=(1,))


def test_model_directory_that_is_a_file_is_refused(tmp_path, dataset, fails):
    (tmp_path / "file").write_text("")
    for model_dir, message in (
        (tmp_path / "file", f"must be a directory, {tmp_path}/file is a file"),
        (tmp_path / "file" / "below", f"{tmp_path}/file/below cannot be made: Not a directory"),
    ):
        line = fails(*train(dataset.directory, model_dir))
        assert line.endswith(message)


def test_model_directory_of_another_dim_is_refused_and_left_as_it_is(trained, dataset, fails):
    before = (trained / "config.json").read_bytes()
    line = fails(*train(dataset.directory, trained, "--embedding-dim=8"), codes=(1,))
    assert "table 'C1' has embedding_dim 8, the checkpoint has 4" in line
    assert "start a new model directory" in line
    assert (trained / "config.json").read_bytes() == before


def test_model_directory_of_another_dense_optimizer_is_refused(trained, dataset, fails):
    before = (trained / "config.json").read_bytes()
    flag = "--dense-optimizer=sgd"
    line = fails(*train(dataset.directory, trained, flag), codes=(1,))
    assert "the network's optimizer is 'sgd', the checkpoint has 'adam'" in line
    assert "(--dense-optimizer adam), or start a new model directory" in line
    assert (trained / "config.json").read_bytes() == before


NETWORK = """
import dataclasses

import tensorflow as tf

from embedps import ClickModel, Embeddings, Recommender


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    how: str = "well"


class Own(ClickModel):
    def __init__(self, how):
        super().__init__(label="label")
        self.how, self.last = how, tf.keras.layers.Dense(1)
        self.norm = tf.keras.layers.BatchNormalization()
        self.embeddings = Embeddings({"C1": 4})

    def logits(self, features, *, training):
        rows = self.embeddings(features)["C1"]
        out = self.last(self.norm(rows, training=False) if self.how == "normalized" else rows)
        return {"dict": {"output": out}, "matrix": out}.get(self.how, out[:, 0])


def make(config, dataset):
    more = {"features": ["C1"], "numerics": []} if config.how == "old" else {}
    return Recommender(build=lambda: Own(config.how), **more)
"""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("normalized", "the model ignores `training`"),
        ("dict", "but returned a dict"),
        ("matrix", r"but returned float32 \[2, 1\]"),
        ("old", "must return a Recommender of these fields, build, .* keyword argument 'features'"),
    ],
)
def test_network_that_cannot_be_trained_is_refused(
    tmp_path, monkeypatch, dataset, fails, how, message
):
    (tmp_path / "networks_of_a_user").mkdir()
    (tmp_path / "networks_of_a_user" / "network.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    where = [f"--data={dataset.directory}", f"--model-dir={tmp_path / 'm'}", "--eval=none"]
    model = ["--model=networks_of_a_user.network", f"--how={how}"]
    line = fails(train_command.main, *where, *model)
    assert re.search(message, line)


def command_of(name, dataset, model_dir):
    if name == "train":
        return train(dataset.directory, model_dir)
    return evaluate.main, f"--model-dir={model_dir}", "--once"


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_manifest_that_names_an_absent_file_is_refused(tmp_path, trained, dataset, fails, command):
    model_dir = tmp_path / "m"
    shutil.copytree(trained, model_dir)
    directory = CheckpointDirectory(model_dir)
    path = directory.file(latest(directory.path).files[0])
    path.unlink()
    line = fails(*command_of(command, dataset, model_dir), codes=(1,))
    assert str(path) in line
    assert "manifest 1 names it" in line


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_damaged_manifest_is_named(tmp_path, trained, dataset, fails, command):
    model_dir = tmp_path / "m"
    shutil.copytree(trained, model_dir)
    path = CheckpointDirectory(model_dir).manifest_path(1)
    path.write_bytes(path.read_bytes()[:-40])
    assert str(path) in fails(*command_of(command, dataset, model_dir), codes=(1,))


@pytest.mark.parametrize("main", [train_command.main, server.main])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "TF_CONFIG must be"),
        ('{"cluster": {}}', "TF_CONFIG must be"),
        ('{"cluster": {"ps": ["a:1"]}, "task": {"type": "worker", "index": 0}}', "TF_CONFIG must"),
        (
            '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 1}}',
            "index must be under 1",
        ),
        ("[]", "TF_CONFIG must be"),
        ('{"cluster": [["h:1"]], "task": {"type": 0, "index": 0}}', "TF_CONFIG must be"),
        ('{"cluster": {"ps": 5}, "task": {"type": "ps", "index": 0}}', "TF_CONFIG must be"),
        ('{"cluster": {"ps": ["a"]}, "task": {"type": "ps", "index": "x"}}', "TF_CONFIG must be"),
        ('{"cluster": {"ps": ["a"]}, "task": {"type": "ps", "index": 1e400}}', "TF_CONFIG must be"),
        ('{"cluster": {"ps": ["a"]}, "task": {"type": "ps", "index": -1}}', "must be under 1"),
        ("[" * 100_000, "TF_CONFIG must be"),
    ],
)
def test_bad_tf_config_is_refused(monkeypatch, fails, main, config, message):
    monkeypatch.setenv("TF_CONFIG", config)
    assert message in fails(main)


@pytest.mark.parametrize("secs", ["0", "-1", "nan", "inf", "1e400", "9" * 400])
def test_server_s_grace_must_be_a_time(fails, secs):
    assert "grace_secs must be" in fails(server.main, f"--grace-secs={secs}")


def test_server_must_be_told_its_task(monkeypatch, fails):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    fails(server.main)
    chief = {"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(chief))
    assert "must be worker or ps but TF_CONFIG has 'chief'" in fails(server.main)


@pytest.mark.parametrize(
    "flags", [["--num-ps=1"], ["--sync=full"], ["--overlap"], ["--num-workers=2"]]
)
def test_workers_in_step_are_not_told_what_they_do_not_have(
    tmp_path, monkeypatch, dataset, fails, flags
):
    task = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    line = fails(*train(dataset.directory, tmp_path / "m", *flags))
    assert flags[0].split("=")[0] in line
    assert "TF_CONFIG has workers only" in line


def test_chief_of_a_cluster_without_servers_is_refused(tmp_path, monkeypatch, dataset, fails):
    chief = {"cluster": {"chief": ["localhost:1"]}, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(chief))
    assert "a cluster must have at least a ps and a worker" in fails(
        *train(dataset.directory, tmp_path / "m")
    )
    local = train(dataset.directory, tmp_path / "m", "--num-ps=1")
    assert "--num-ps is of a local cluster" in fails(*local)


def test_a_bound_of_staleness_does_not_go_with_overlapping_steps(tmp_path, dataset, fails):
    bounds = ("--num-ps=1", "--overlap", "--max-staleness-steps=2")
    assert "leave one of them out" in fails(*train(dataset.directory, tmp_path / "m", *bounds))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--num-ps=1", "--overlap"], "leave one of them out"),
        (["--num-ps=1", "--max-staleness-steps=0"], "leave one of them out"),
        ([], "--sync full needs parameter servers"),
        (["--on-lost-worker=continue"], "--sync full needs parameter servers"),
        (["--num-ps=1", "--num-workers=2", "--backup-workers=1"], "give --on-lost-worker continue"),
        (
            ["--num-ps=1", "--num-workers=2", "--on-lost-worker=continue", "--backup-workers=2"],
            "--backup-workers must be less than the 2 workers but is 2",
        ),
        (["--num-ps=1", "--sync=none", "--on-lost-worker=continue"], "--sync none waits for"),
    ],
)
def test_steps_of_all_workers_are_refused_where_they_mean_nothing(
    tmp_path, dataset, fails, more, message
):
    assert message in fails(*train(dataset.directory, tmp_path / "m", "--sync=full", *more))


def test_evaluate_needs_a_directory_that_was_trained_in(tmp_path, fails):
    assert f"{tmp_path}/config.json is not there" in fails(evaluate.main, f"--model-dir={tmp_path}")
    fails(evaluate.main)
    (tmp_path / "config.json").write_text("{}")
    assert "is not a run's config" in fails(evaluate.main, f"--model-dir={tmp_path}")


def test_module_that_only_the_model_directory_names_is_not_imported(tmp_path, monkeypatch, fails):
    """config.json is data: who may write to the directory must not choose what code is run."""
    package = tmp_path / "package_of_a_user"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    train = {"data": "data", "model_dir": str(tmp_path), "model": "package_of_a_user.model"}
    (tmp_path / "config.json").write_text(json.dumps({"train": train, "model": {}}))
    assert "give --model package_of_a_user.model to have its module imported" in fails(
        evaluate.main, f"--model-dir={tmp_path}"
    )
    fails(evaluate.main, f"--model-dir={tmp_path}", "--model=dlrm")
    assert not (tmp_path / "imported").exists()
    fails(evaluate.main, f"--model-dir={tmp_path}", "--model=package_of_a_user.model", codes=(1, 2))
    assert (tmp_path / "imported").exists()


def test_evaluate_once_needs_a_checkpoint(tmp_path, dataset, fails):
    config = make_config(dataset, tmp_path, model="dlrm")
    tmp_path.mkdir(exist_ok=True)
    RunConfig(config=config, model_config=TINY_DLRM).save()
    assert "has no checkpoint yet" in fails(evaluate.main, f"--model-dir={tmp_path}", "--once")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--num-shards=0"], "num_shards must be at least 1 but got 0"),
        (["--num-shards=1025"], "num_shards must be at most 1024 but got 1025"),
        ([f"--batch-size={2**70}"], "batch_size must be at most"),
        (["--idle-secs=nan"], "idle_secs must be above 0 but got nan"),
        (["--data="], "data must not be empty but got ''"),
        (["--model-dir= "], "model_dir must not be empty but got ' '"),
        (["--model="], "model must not be empty but got ''"),
        (["--split=test", "--once"], "no split 'test', there is train, eval"),
        (["--data=nowhere"], "nowhere: no such dataset directory"),
        (["--resumed-after=x"], "--resumed-after: invalid int value"),
    ],
)
def test_bad_flag_of_evaluate_is_refused(trained, fails, more, message):
    assert message in fails(evaluate.main, f"--model-dir={trained}", *more, codes=(1, 2))


def _with_bad_value(folder: Path, split: str, column: str, value: float) -> Dataset:
    """A dataset by hand: one value of a shard is none that may be, and all sizes are right."""
    dataset = write_dataset(folder)
    path = dataset.paths(split)[0]
    rows = pq.read_table(path)
    values = rows[column].to_numpy().copy()
    values[700] = value
    at = rows.schema.get_field_index(column)
    rows = rows.set_column(at, rows.schema.field(column), pa.array(values))
    pq.write_table(rows, path, row_group_size=500, compression="zstd")
    document = json.loads((folder / "_dataset.json").read_text())
    document["splits"][split]["files"][0]["bytes"] = path.stat().st_size
    (folder / "_dataset.json").write_text(json.dumps(document))
    return Dataset.open(folder)


def test_label_that_is_none_is_one_line_of_training(tmp_path, fails):
    dataset = _with_bad_value(tmp_path / "set", "train", "label", 2.0)
    line = fails(*train(dataset.directory, tmp_path / "m"), codes=(1,))
    assert f"'{dataset.paths('train')[0]}', row group 1: column 'label'" in line
    assert "must be 0 or 1 but is 2 at row 700 of the file, counted from 0" in line


@pytest.mark.parametrize(("column", "value"), [("label", float("nan")), ("I1", float("inf"))])
def test_value_that_is_none_is_one_line_of_evaluation(tmp_path, trained, fails, column, value):
    dataset = _with_bad_value(tmp_path / "set", "eval", column, value)
    where = [f"--model-dir={trained}", f"--data={dataset.directory}"]
    line = fails(evaluate.main, *where, "--once", codes=(1,))
    assert f"'{dataset.paths('eval')[0]}', row group 1: column '{column}'" in line
    assert "at row 700 of the file, counted from 0" in line


@pytest.mark.multiprocess
@pytest.mark.slow
def test_damaged_shard_is_one_line_of_the_command(tmp_path):
    """As large as it was, with its footer: it is found when its pages are read."""
    dataset = write_dataset(tmp_path / "set")
    path = dataset.paths("train")[1]
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes(len(data) // 2) + data[100 + len(data) // 2 :])
    command = ["-m", "embedps.train", *train_flags(dataset.directory, tmp_path / "m")]
    done = forked.run(command, cwd=ROOT, capture_output=True, timeout=120)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("embedps: ")
    assert str(path) in line
    assert line.endswith("make the dataset again")


def test_configs_of_this_file_are_what_the_commands_resolve(dataset, trained):
    given = train_command.parse(train_flags(dataset.directory, trained))
    assert given.model_config == TINY_DLRM
    same = make_config(dataset, trained, model="dlrm").to_options()
    intervals = {"delta_secs": 1.0, "log_secs": 1.0}
    assert {**given.config.to_options(), **intervals} == {**same, **intervals}


def test_another_dim_is_told_as_the_user_gave_it(tmp_path, dataset):
    first, second = (fm.make(fm.Config(embedding_dim=dim), dataset) for dim in (3, 5))
    make_trainer(dataset, tmp_path, recommender=first).fit()
    # A row of this model has a weight besides.
    told = pytest.raises(DimMismatchError, match=r"'C1' has embedding_dim 5, the .* has 3: ")
    with told:
        make_trainer(dataset, tmp_path, recommender=second)
    with told:
        load(tmp_path, data=dataset.directory, recommender=second)
    directory = CheckpointDirectory(tmp_path)
    with told:
        export_model(second, dataset, directory, tmp_path / "x", directory.numbers()[-1], top_k=1)

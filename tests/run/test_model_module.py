"""Which module a model's name means, with folders of the user's called models/ and pipelines/."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from embedps.errors import UsageError
from embedps.run.config import TrainConfig
from embedps.run.model_module import find_model, is_built_in
from embedps.run.run_config import RunConfig, read_run
from models import dlrm
from tests.builders import ROOT, TINY_DLRM_FLAGS, write_dataset
from tests.pipelines.shop import SHOP, load, make, make_records, write_csv

RAISES = 'raise RuntimeError("this is a package of the user\'s")\n'
OWN = """
import dataclasses
from models import dlrm


@dataclasses.dataclass(frozen=True)
class Config:
    own_dim: int = 4


def make(config, dataset):
    shape = dlrm.Config(embedding_dim=config.own_dim, bottom_mlp=(8,), top_mlp=(8,))
    return dlrm.make(shape, dataset)
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "set", train=(600,), evaluation=(200,))


@pytest.fixture
def folder(tmp_path):
    """A working directory with folders that are called as embedps's packages are."""
    for name in ("models/__init__.py", "models/dlrm.py", "pipelines/__init__.py"):
        path = tmp_path / "cwd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RAISES)
    return tmp_path / "cwd"


def run(folder: Path, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def flags_of(dataset, model_dir, *more):
    return ("--data", dataset.directory, "--model-dir", model_dir, "--unit-rows=2048", *more)


@pytest.mark.slow
def test_built_in_model_trains_and_is_scored_beside_folders_of_the_same_name(dataset, folder):
    flags = flags_of(dataset, "m", "--model=dlrm", *TINY_DLRM_FLAGS)
    out = run(folder, "-m", "embedps.train", *flags).stdout
    assert "Held-out scores" in out  # by a process beside it, with the same working directory
    assert json.loads((folder / "m/config.json").read_text())["train"]["model"] == "dlrm"


def test_console_command_finds_the_built_in_model_beside_folders_of_the_same_name(folder):
    program = (
        "import sys; from embedps.__main__ import main; "
        "sys.argv[:] = ['/usr/bin/embedps', 'train', '--model=dlrm', '--help']; main()"
    )
    assert "--embedding-dim" in run(folder, "-c", program).stdout
    arguments = ("-m", "embedps", "train", "--model=dlrm", "--help")
    assert "--embedding-dim" in run(folder, *arguments).stdout


def test_shipped_packages_work_by_names_that_no_folder_hides(folder):
    arguments = ("-m", "embedps.pipelines.ingest", "--help")
    assert "--schema" in run(folder, *arguments).stdout
    program = (
        "from embedps.models import dlrm\n"
        "from embedps.run.shipped_packages import import_shipped\n"
        "assert import_shipped('models.dlrm') is dlrm\n"
    )
    run(folder, "-c", program)


def test_a_shipped_module_is_loaded_once_by_either_name():
    program = (
        "import sys\n"
        "from embedps.models import dlrm as first\n"
        "from models import dlrm as second\n"
        "import models.fm as third, embedps.models.fm as fourth\n"
        "from embedps.pipelines.ingestion import options as fifth\n"
        "from pipelines.ingestion import options as sixth\n"
        "assert first is second and third is fourth and fifth is sixth\n"
        "assert [m.__spec__.name for m in (first, third, fifth)] == "
        "['models.dlrm', 'models.fm', 'pipelines.ingestion.options']\n"
    )
    run(ROOT, "-c", program)


def test_raw_reads_the_transforms_beside_folders_of_the_same_name(folder, tmp_path):
    logs = write_csv(tmp_path / "logs.csv", make_records(50))
    shop_data = make(load(tmp_path), logs, tmp_path / "shop")
    program = (
        "from pathlib import Path\n"
        "from embedps.data.dataset import Dataset\n"
        "from embedps.predict import _raw_reader\n"
        f"dataset = Dataset.open(Path({str(shop_data.directory)!r}))\n"
        "made = _raw_reader(dataset)([*dataset.schema], (), 100)\n"
        f"(part,) = made.read(Path({str(logs)!r}))\n"
        "assert part.readable.all() and len(part.readable) == 50\n"
    )
    run(folder, "-c", program)


@pytest.mark.slow
def test_whole_commands_work_beside_folders_of_the_same_name(folder, tmp_path):
    logs = write_csv(tmp_path / "logs.csv", make_records(300))
    (tmp_path / "schema.toml").write_text(SHOP)
    flags = ("--schema", tmp_path / "schema.toml", "--input", logs, "--output", "SHOP")
    workers = ("--num-shards=2", "--direct_num_workers=2", "--direct_running_mode=multi_processing")
    run(folder, "-m", "embedps.pipelines.ingest", *flags, *workers)
    assert "label rate" in run(folder, "-m", "embedps.pipelines.describe", "SHOP").stdout
    program = (
        "from embedps import EvaluationConfig, TrainConfig, Trainer\n"
        "from embedps.models import logistic_regression\n"
        "off = EvaluationConfig(mode='none')\n"
        "config = TrainConfig(data='SHOP', model_dir='M', model='logistic_regression', "
        "evaluation=off)\n"
        "Trainer.from_config(config, logistic_regression.Config()).fit()\n"
    )
    run(folder, "-c", program)
    raw = ("--model-dir=M", "--raw", "--input", logs, "--output", "scores")
    run(folder, "-m", "embedps.predict", *raw)
    assert pq.read_table(folder / "scores").num_rows == 300


def test_benchmarks_say_in_one_line_that_a_folder_clashes(folder):
    done = run(folder, "-m", "benchmarks", "--help", code=1)
    assert done.stderr.count("\n") == 1
    assert "embedps: the package 'models' must be " in done.stderr
    assert done.stderr.endswith("start the command in another directory\n")


def test_built_in_model_is_the_same_module_where_nothing_clashes():
    assert find_model("dlrm") is dlrm


@pytest.mark.slow
def test_model_of_the_user_is_a_module_with_or_without_a_package(dataset, tmp_path):
    (tmp_path / "mymodel.py").write_text(OWN)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/module.py").write_text(OWN)
    assert "--own-dim" in run(tmp_path, "-m", "embedps.train", "--model=mymodel", "--help").stdout
    help_text = run(tmp_path, "-m", "embedps", "train", "--model=package.module", "--help").stdout
    assert "--own-dim" in help_text
    run(tmp_path, "-m", "embedps.train", *flags_of(dataset, "m", "--model=mymodel", "--eval=none"))

    # What config.json names is not imported, unless the caller names it too.
    evaluate = ("-m", "embedps.evaluate", "--model-dir=m", "--once")
    refused = run(tmp_path, *evaluate, code=2).stderr
    assert "config.json is of model 'mymodel': give --model mymodel" in refused
    assert "auc" in run(tmp_path, *evaluate, "--model=mymodel").stdout.lower()


def test_built_in_name_wins_over_a_module_of_the_user(tmp_path):
    (tmp_path / "dlrm.py").write_text(RAISES)
    text = run(tmp_path, "-m", "embedps.train", "--model=dlrm", "--help").stdout
    assert "--embedding-dim" in text


@pytest.mark.parametrize("name", ["json", "tests.builders"])
def test_module_that_is_no_model_is_refused(name):
    with pytest.raises(UsageError, match=rf"--model {name}: .*must have a dataclass Config and"):
        find_model(name)


@pytest.mark.parametrize("name", ["absent", "absent.module", "tests.absent", "dlr"])
def test_module_that_is_absent_is_refused_in_one_line(name):
    with pytest.raises(
        UsageError, match=rf"there is no module {name} on Python's path.*\(.*dlrm"
    ) as e:
        find_model(name)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("name", ["", "../dlrm", "dlrm.py/", "a..b", "/dlrm", "dlrm "])
def test_name_that_is_no_modules_is_refused(name):
    assert not is_built_in(name)
    with pytest.raises(UsageError, match="--model must be a module's name but got"):
        find_model(name)


def test_package_itself_is_no_model():
    assert not is_built_in("__init__")


@pytest.mark.parametrize("stored", ["antigravity", "tests.absent", "../models/dlrm", "__init__"])
def test_model_that_config_json_names_is_not_imported_unless_it_is_built_in(tmp_path, stored):
    config = TrainConfig(data="d", model_dir=str(tmp_path), model=stored)
    RunConfig(config=config, model_config=dlrm.Config()).save()
    with pytest.raises(UsageError, match=r"give --model .* to have its module imported"):
        read_run(tmp_path)
    assert stored not in sys.modules


def test_paths_of_the_tests_are_of_this_checkout():
    assert Path(find_model("dlrm").__file__ or "").resolve().is_relative_to(ROOT)

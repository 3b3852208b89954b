"""Which module a model's name means, with folders of the user's called models/ and pipelines/."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from setuptools import find_packages

from embedps.errors import UsageError
from embedps.models import dlrm
from embedps.run.config import TrainConfig
from embedps.run.model_module import find_model, is_built_in
from embedps.run.run_config import RunConfig, read_run
from tests import commands
from tests.builders import ROOT, TINY_DLRM_FLAGS, dataset_fixture
from tests.pipelines.shop import SHOP, load, make, make_records, write_csv

RAISES = 'raise RuntimeError("this is a package of the user\'s")\n'
OWN = """
import dataclasses
from embedps.models import dlrm


@dataclasses.dataclass(frozen=True)
class Config:
    own_dim: int = 4


def make(config, dataset):
    shape = dlrm.Config(embedding_dim=config.own_dim, bottom_mlp=(8,), top_mlp=(8,))
    return dlrm.make(shape, dataset)
"""


dataset = dataset_fixture(train=(600,), evaluation=(200,))


@pytest.fixture
def folder(tmp_path):
    """A working directory with folders that are called as embedps's packages are."""
    for name in ("models/__init__.py", "models/dlrm.py", "pipelines/__init__.py"):
        path = tmp_path / "cwd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RAISES)
    return tmp_path / "cwd"


def run(folder: Path, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return commands.run(*arguments, cwd=folder, **options)


def install(form: str, folder: Path) -> Path:
    """Installs this checkout beside the packages that it needs; gives the new interpreter."""
    run(folder, "-m", "venv", "--without-pip", folder / "venv")
    (site_packages,) = (folder / "venv").glob("lib/python3*/site-packages")
    # As a plain folder of modules: what is installed as editable there stays unknown.
    (site_packages / "shared.pth").write_text(str(Path(pa.__file__).parents[1]))
    python = folder / "venv" / "bin" / "python"
    flags = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    pip = ("-m", "pip", "--python", python, "install", *flags)
    run(ROOT, *pip, *(("--editable", ".") if form == "editable" else (".",)))
    return python


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


def test_the_packages_work_beside_folders_of_the_same_name(folder):
    arguments = ("-m", "embedps.pipelines.ingest", "--help")
    assert "--schema" in run(folder, *arguments).stdout
    program = (
        "from embedps.models import dlrm\n"
        "from embedps.run.model_module import find_model\n"
        "assert find_model('dlrm') is dlrm\n"
    )
    run(folder, "-c", program)


def test_a_second_copy_of_the_models_is_refused_in_a_checkout():
    done = run(ROOT, "-c", "from models import dlrm", code=1)
    assert "must be imported as embedps.models, but this is models" in done.stderr


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


def test_an_install_brings_one_name():
    """A wheel holds the packages that setuptools finds."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = find_packages(str(ROOT), include=declared["packages"]["find"]["include"])
    assert {name.partition(".")[0] for name in found} == {"embedps"}
    assert {"embedps.models.networks", "embedps.pipelines.ingestion"} <= set(found)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["wheel", "editable"])
def test_installed_package_works_beside_folders_of_the_same_name(form, folder, tmp_path):
    python = install(form, tmp_path)
    found = "import importlib.util as u; print(*map(u.find_spec, ('models', 'pipelines')))"
    assert run(tmp_path, "-I", "-c", found, python=python).stdout == "None None\n"

    def module(name: str, *arguments: object) -> str:
        return run(folder, "-m", f"embedps.{name}", *arguments, python=python).stdout

    logs = write_csv(tmp_path / "logs.csv", make_records(300))
    (tmp_path / "schema.toml").write_text(SHOP)
    flags = ("--schema", tmp_path / "schema.toml", "--input", logs, "--output", "SHOP")
    workers = ("--num-shards=2", "--direct_num_workers=2", "--direct_running_mode=multi_processing")
    module("pipelines.ingest", *flags, *workers)
    assert "label rate" in module("pipelines.describe", "SHOP")
    module("pipelines.generate", "--rows=300", "--output=day_0.tsv")
    module("pipelines.criteo", "--input=day_0.tsv", "--output=CRITEO")  # a schema that comes along
    train = ("train", "--model=logistic_regression", "--data=SHOP", "--model-dir=M")
    script = run(folder, python.with_name("embedps"), *train, python=python)
    assert "Held-out scores" in script.stdout
    module("predict", "--model-dir=M", "--raw", "--input", logs, "--output=scores")
    assert pq.read_table(folder / "scores").num_rows == 300
    program = (
        "import embedps\n"
        "from embedps.models import dlrm, logistic_regression\n"
        f"assert embedps.__file__.startswith({str(ROOT)!r}) == {form == 'editable'}\n"
        "off = embedps.EvaluationConfig(mode='none')\n"
        "config = embedps.TrainConfig(data='SHOP', model_dir='N', model='logistic_regression', "
        "evaluation=off)\n"
        "embedps.Trainer.from_config(config, logistic_regression.Config()).fit()\n"
        "assert embedps.Transforms.load('SHOP').table.features\n"
    )
    run(folder, "-c", program, python=python)


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

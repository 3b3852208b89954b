"""What every command answers at once: its help and its complaints do not wait for TensorFlow."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from embedps import models
from embedps.run.run_config import RunConfig
from tests.builders import ROOT, TINY_DLRM, make_config, write_dataset
from tests.commands import run

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for path in (ROOT / "embedps").rglob("*.py")
    if '__name__ == "__main__"' in path.read_text()
)
MODELS = sorted(
    path.stem
    for path in Path(models.__file__).parent.glob("*.py")
    if "def make(" in path.read_text()
)


def answer(module: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command that must end before it imports TensorFlow."""
    done = run("-X", "importtime", "-m", module, *arguments, timeout=60, **options)
    imports = [x for x in done.stderr.splitlines() if x.startswith("import time:")]
    assert len(imports) > 50
    packages = {x.rpartition("|")[2].strip().partition(".")[0] for x in imports}
    assert {x for x in packages if "tensorflow" in x or "keras" in x} == set()
    assert "embedps" in packages
    said = [x for x in done.stderr.splitlines() if not x.startswith("import time:")]
    done.stderr = "\n".join(said)
    return done


def complaint(code: int, module: str, *arguments: object, **more: str) -> str:
    """The line of a command that must fail so."""
    done = answer(module, *arguments, code=code, **more)
    (line,) = done.stderr.splitlines()
    assert line.startswith("embedps: ")
    return line


def test_all_commands_and_models_are_known():
    assert {"embedps.train", "embedps.evaluate", "embedps.server"} < set(MODULES)
    assert {"embedps.checkpoint", "embedps.kernels.build"} < set(MODULES)
    assert "dlrm" in MODELS


@pytest.mark.parametrize("module", MODULES)
def test_help_and_an_unknown_flag_do_not_import_tensorflow(module):
    done = answer(module, "--help")
    assert done.stderr == ""
    assert f"usage: python -m {module}" in done.stdout
    no_options = ("embedps", "embedps.checkpoint", "embedps.kernels.build")
    assert ("\n  --config FILE " in done.stdout) == (module not in no_options)
    assert complaint(2, module, "--bogus").endswith("(--help lists the flags)")


@pytest.mark.parametrize("model", MODELS)
def test_flags_of_a_built_in_model_do_not_import_tensorflow(model):
    done = answer("embedps.train", f"--model={model}", "--help")
    assert done.stderr == ""
    assert f"model {model}:" in done.stdout


def test_help_of_a_model_reads_few_modules():
    """Reading modules is what makes it slow: of 374 lines most are of the standard library."""
    done = run("-X", "importtime", "-m", "embedps.train", "--model=dlrm", "--help")
    modules = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "embedps.run.config" in modules
    slow = ("tensorflow", "keras", "tf_keras", "pandas", "apache_beam", "grpc", "matplotlib")
    assert {name.split(".")[0] for name in modules}.isdisjoint(slow)
    assert len(modules) < 600


def test_what_flags_and_files_can_be_refused_for_comes_before_tensorflow(tmp_path):
    dataset = write_dataset(tmp_path / "set")
    (tmp_path / "file").write_text("")
    data, model_dir = f"--data={dataset.directory}", f"--model-dir={tmp_path / 'm'}"
    train = "embedps.train"
    assert "no such dataset" in complaint(1, train, f"--data={tmp_path / 'no'}", model_dir)
    assert "is a file" in complaint(2, train, data, f"--model-dir={tmp_path / 'file'}")
    assert "stop_patience" in complaint(
        2, train, data, model_dir, "--eval=none", "--stop-patience=1"
    )
    chief = {"cluster": {"chief": ["localhost:1"]}, "task": {"type": "chief", "index": 0}}
    line = complaint(2, train, data, model_dir, "--num-ps=1", TF_CONFIG=json.dumps(chief))
    assert "TF_CONFIG already names one" in line
    path = dataset.directory / "_dataset.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'))
    assert "version must be 1, got 9" in complaint(1, train, data, model_dir)
    assert not (tmp_path / "m").exists()


def test_what_an_evaluator_can_be_refused_for_comes_before_tensorflow(tmp_path):
    dataset = write_dataset(tmp_path / "set")
    evaluate, model_dir = "embedps.evaluate", f"--model-dir={tmp_path / 'm'}"
    assert "config.json is not there" in complaint(2, evaluate, model_dir)
    (tmp_path / "m").mkdir()
    RunConfig(
        config=make_config(dataset, tmp_path / "m", model="dlrm"), model_config=TINY_DLRM
    ).save()
    assert "no such dataset" in complaint(1, evaluate, model_dir, "--data=nowhere")
    assert "no split 'test'" in complaint(1, evaluate, model_dir, "--split=test")

"""What every command answers at once: its help and its complaints do not wait for TensorFlow."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedps import models
from embedps.run.run_config import RunConfig
from tests.builders import ROOT, TINY_DLRM, make_config, write_dataset

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for path in (ROOT / "embedps").rglob("*.py")
    if '__name__ == "__main__"' in path.read_text()
)
SHOWN = {
    "embedps.train": ("--embedding-dim", "--delta-secs"),
    "embedps.evaluate": ("--once",),
    "embedps.server": ("TF_CONFIG",),
}
MODELS = sorted(
    path.stem
    for path in Path(models.__file__).parent.glob("*.py")
    if "def make(" in path.read_text()
)


# Runs each command in a fork, which has what most commands import: neither TensorFlow nor Keras.
PROGRAM = """
import io, json, os, runpy, sys
import pyarrow.parquet
import embedps.run.config
for line in sys.stdin:
    module, arguments, environment = json.loads(line)
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ.update(environment)
        sys.argv[:] = ["-m", *arguments]
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        sys.modules.pop(module, None)
        code = 0
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code or 0
        with open(write, "w") as answer:
            said = sys.stdout.getvalue(), sys.stderr.getvalue()
            json.dump([code, *said, sorted(sys.modules)], answer)
        os._exit(0)
    os.close(write)
    with open(read) as answer:
        print(answer.read(), flush=True)
    os.wait()
"""


class Commands:
    """Runs commands that must end before they import TensorFlow, as fresh interpreters do."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], cwd=ROOT, stdin=pipe, stdout=pipe, text=True
        )

    def answer(
        self, module: str, *arguments: object, code: int = 0, **environment: str
    ) -> tuple[str, str, set[str]]:
        """What a command says on stdout and stderr, and which modules it has imported."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(
            json.dumps([module, [*map(str, arguments)], environment]),
            file=self.process.stdin,
            flush=True,
        )
        found, out, err, modules = json.loads(self.process.stdout.readline())
        assert found == code, f"{out}\n{err}"
        packages = {name.partition(".")[0] for name in modules}
        assert {x for x in packages if "tensorflow" in x or "keras" in x} == set()
        assert "embedps" in packages
        return out, err, set(modules)

    def complaint(self, code: int, module: str, *arguments: object, **more: str) -> str:
        """The line of a command that must fail so."""
        (line,) = self.answer(module, *arguments, code=code, **more)[1].splitlines()
        assert line.startswith("embedps: ")
        return line


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    started = Commands()
    yield started
    started.process.communicate(timeout=60)


def test_all_commands_and_models_are_known():
    assert {"embedps.train", "embedps.evaluate", "embedps.server"} < set(MODULES)
    assert {"embedps.checkpoint", "embedps.kernels.build"} < set(MODULES)
    assert "dlrm" in MODELS


@pytest.mark.parametrize("module", MODULES)
def test_help_and_an_unknown_flag_do_not_import_tensorflow(commands, module):
    out, err, _ = commands.answer(module, "--help")
    assert err == ""
    assert f"usage: python -m {module}" in out
    for text in SHOWN.get(module, ()):
        assert text in out
    no_options = ("embedps", "embedps.checkpoint", "embedps.table", "embedps.kernels.build")
    assert ("\n  --config FILE " in out) == (module not in no_options)
    assert commands.complaint(2, module, "--bogus").endswith("(--help lists the flags)")


@pytest.mark.parametrize("model", MODELS)
def test_flags_of_a_built_in_model_do_not_import_tensorflow(commands, model):
    out, err, modules = commands.answer("embedps.train", f"--model={model}", "--help")
    assert err == ""
    assert f"model {model}:" in out
    # Reading modules is what makes it slow: of 374 most are of the standard library.
    slow = {"pandas", "apache_beam", "grpc", "matplotlib"}
    assert {name.partition(".")[0] for name in modules}.isdisjoint(slow)
    assert len(modules) < 600


def test_what_flags_and_files_can_be_refused_for_comes_before_tensorflow(commands, tmp_path):
    dataset = write_dataset(tmp_path / "set")
    (tmp_path / "file").write_text("")
    data, model_dir = f"--data={dataset.directory}", f"--model-dir={tmp_path / 'm'}"
    train = "embedps.train"
    assert "no such dataset" in commands.complaint(1, train, f"--data={tmp_path / 'no'}", model_dir)
    assert "is a file" in commands.complaint(2, train, data, f"--model-dir={tmp_path / 'file'}")
    assert "stop_patience" in commands.complaint(
        2, train, data, model_dir, "--eval=none", "--stop-patience=1"
    )
    chief = {"cluster": {"chief": ["localhost:1"]}, "task": {"type": "chief", "index": 0}}
    line = commands.complaint(2, train, data, model_dir, "--num-ps=1", TF_CONFIG=json.dumps(chief))
    assert "TF_CONFIG already names one" in line
    path = dataset.directory / "_dataset.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'))
    assert "version must be 1, got 9" in commands.complaint(1, train, data, model_dir)
    assert not (tmp_path / "m").exists()


def test_what_an_evaluator_can_be_refused_for_comes_before_tensorflow(commands, tmp_path):
    dataset = write_dataset(tmp_path / "set")
    evaluate, model_dir = "embedps.evaluate", f"--model-dir={tmp_path / 'm'}"
    assert "config.json is not there" in commands.complaint(2, evaluate, model_dir)
    (tmp_path / "m").mkdir()
    RunConfig(
        config=make_config(dataset, tmp_path / "m", model="dlrm"), model_config=TINY_DLRM
    ).save()
    assert "no such dataset" in commands.complaint(1, evaluate, model_dir, "--data=nowhere")
    assert "no split 'test'" in commands.complaint(1, evaluate, model_dir, "--split=test")

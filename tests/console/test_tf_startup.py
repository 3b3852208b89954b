"""TensorFlow's start: nothing of it on stderr, nothing of it in the temporary folder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tensorflow.python.autograph.impl import conversion

from embedps import ClickModel, kernels, metrics
from embedps.console import tf_startup
from embedps.data.unit_reader import UnitReader
from embedps.engine.step_model import StepModel
from embedps.kernels import build
from embedps.tables.collection import EmbeddingCollection
from tests.builders import ROOT, write_dataset
from tests.commands import SMALL, read_until, script_of, train, wait_until_gone

TRAINS = """
import json
import sys
from embedps.run.config import TrainConfig
from embedps.training.trainer import Trainer
from embedps.models import dlrm

data, model_dir, more = sys.argv[1:]
config = TrainConfig.from_options(
    data=data, model_dir=model_dir, batch_size=64, unit_rows=512, log_secs=1e6, **json.loads(more)
)
model = dlrm.Config(embedding_dim=4, bottom_mlp=(8,), top_mlp=(8,))
Trainer.from_config(config, model).fit()
"""

TRACES = """
{imports}
import inspect
import traceback

@tf.function
def double_or_fail(x):
    if tf.reduce_sum(x) > 0:
        y = 2 * x
    else:
        y = tf.reshape(x, [7])
    return y

try:
    double_or_fail(tf.ones([3]))
except ValueError:
    print(traceback.format_exc())
print(inspect.getsource(tf.autograph.to_graph(double_or_fail.python_function)))
sys.stdout.flush()
os._exit(0)
"""


def run_script(text: str, *arguments: str, tmp_path: Path, **more: str) -> tuple[str, str]:
    """A user's script; its stdout and stderr. Its temporary folder must stay empty."""
    (tmp_path / "script.py").write_text(text)
    (tmp_path / "temporary").mkdir()
    quiet = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), *arguments],
        env={**quiet, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "temporary"), **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    wait_until_gone(str(tmp_path / "temporary"))
    assert list((tmp_path / "temporary").iterdir()) == []
    return done.stdout, done.stderr


@pytest.mark.multiprocess
@pytest.mark.parametrize("more", [{"num_ps": 1}, {"num_workers": 8, "eval": "none"}])
def test_run_from_python_is_quiet_and_leaves_no_file(tmp_path, more):
    data, model_dir = write_dataset(tmp_path / "set").directory, tmp_path / "m"
    _, err = run_script(TRAINS, str(data), str(model_dir), json.dumps(more), tmp_path=tmp_path)
    assert err == ""
    assert (model_dir / "evaluation.jsonl").exists() == ("eval" not in more)


@pytest.mark.multiprocess
def test_killed_run_leaves_no_file(tmp_path):
    dataset = write_dataset(tmp_path / "set")
    (tmp_path / "temporary").mkdir()
    more = ("--num-ps=1", "--epochs=1000", "--log-secs=0.1", "--delta-secs=0.5", *SMALL)
    process = train(dataset, tmp_path / "m", *more, TMPDIR=str(tmp_path / "temporary"))
    read_until(process, "delta")  # its base was written before, so all is traced
    process.kill()
    process.communicate()
    wait_until_gone(str(tmp_path / "temporary"))
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    "imports",
    ["import os, sys, embedps, tensorflow as tf", "import os, sys, tensorflow as tf, embedps"],
)
def test_autograph_keeps_its_code_in_memory_and_tracebacks_show_it(tmp_path, imports):
    out, _ = run_script(TRACES.format(imports=imports), tmp_path=tmp_path)
    assert 'File "<__autograph_generated_' in out
    assert "ag__.if_stmt(" in out.split("Traceback")[1]
    assert re.search(r'script.py", line 11, in double_or_fail  \*\n +y = tf.reshape', out)
    assert "def tf__double_or_fail(x):" in out


def test_autograph_converts_what_a_user_wrote_and_leaves_most_of_ours():
    for ours in (EmbeddingCollection.lookup, UnitReader.next, metrics.histogram_auc):
        assert conversion.is_allowlisted(ours)
    for theirs in (run_script, StepModel.loss, ClickModel.compute_loss):  # calls what users write
        assert not conversion.is_allowlisted(theirs)


def test_user_who_asks_for_the_log_gets_it(tmp_path):
    _, err = run_script("import embedps, tensorflow", tmp_path=tmp_path, TF_CPP_MIN_LOG_LEVEL="0")
    assert re.search(r"^[IWE]\d{4} ", err, re.M)  # which lines, depends on the machine


SERVES = """
import sys
from embedps import kernels
from embedps.console import tf_startup

tf_startup.import_runtime()
kernels.library()
from tensorflow.python.training import server_lib

print(server_lib.Server.create_local_server().target)
print([name for name in sys.modules if name.startswith(("tensorflow._api", "keras", "tf_keras"))])
tf_startup.import_runtime()  # once more does nothing
"""


STALE = """
from pathlib import Path
from embedps.kernels import build

folder = Path(__file__).parent / "stale"
folder.mkdir()
build.LIBRARY, build._STAMP = folder / "_embedps.so", folder / "_build" / "digest"
"""
COMPILER = script_of(f"""
import shutil, sys

target = sys.argv[sys.argv.index("-o") + 1]
if "-shared" in sys.argv:
    shutil.copy({str(build.LIBRARY)!r}, target)
else:
    open(target, "w").close()
""")


def test_server_needs_no_python_api_also_to_build_stale_kernels(tmp_path):
    """It takes seconds to import, for each server that starts."""
    kernels.load()
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    out, err = run_script(STALE + SERVES, tmp_path=tmp_path, CXX=str(compiler))
    assert re.fullmatch(r"grpc://localhost:\d+\n\[\]\n", out)
    assert re.fullmatch(r"embedps: building \d+ kernel sources\n", err)


def test_only_greetings_are_dropped(monkeypatch, capfd):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    lines = (
        b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n",
        b"E0000 00:00:1795373942.582017   16405 cuda_platform.cc:52] failed call to cuInit\n",
        b"2026-11-22 18:59:22.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This\n",
        b"F0000 00:00:1795373942.582017   16405 lib.cc:5] Check failed\n",
        b"E as the first letter of a user's line\n",
        b"no line's end",
    )
    with tf_startup._without_startup_log():
        os.write(2, b"".join(lines))
    assert capfd.readouterr().err.encode() == b"".join(lines[3:])

    def fail() -> None:
        with tf_startup._without_startup_log():
            os.write(2, b"".join(lines))
            raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert capfd.readouterr().err.encode() == b"".join(lines)


def test_native_output_is_dropped_for_a_while_and_pythons_is_not() -> None:
    code = """
import os, sys
from embedps.console.tf_logging import native_stderr_dropped

with native_stderr_dropped():
    os.write(2, b"native\\n")
    print("python", file=sys.stderr)
os.write(2, b"after\\n")
print("too", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "python\nafter\ntoo\n"

"""What every test shares: a quiet TensorFlow on the CPU, and the folder of real samples."""

import functools
import gc
import os
import re
import shutil
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# Chooses Keras 2 before anything imports TensorFlow.
import embedps

if TYPE_CHECKING:
    import numpy as np

    from embedps.data.dataset import Dataset

# The checks of a commit try the same examples each time; everyone else's runs look for new ones.
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")


# Long tests that share little: any process may take one. The other files stay whole, so that what
# their tests share is made once.
ONE_BY_ONE = (
    "tests/benchmarks/",
    "tests/examples/",
    "tests/tables/test_table_oracle.py",
    "tests/training/test_failures.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begins with the files of slow tests where processes share the tests: all then end at once."""
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Leaves what was imported out of garbage collection, which takes a tenth of the time else."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names a failed test at once: a run that is ended before its summary has told which failed."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nfailed: {report.nodeid}", file=sys.__stderr__, flush=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives a process a file at a time, in the order above; those of ONE_BY_ONE test by test.

    In place of --dist=loadgroup: pytest-xdist 3.8 finds no groups under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return Scheduler(config, log)


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder named by EMBEDPS_SAMPLES, with real click logs; skips where it is unset."""
    name = os.environ.get("EMBEDPS_SAMPLES")
    if not name:
        pytest.skip("EMBEDPS_SAMPLES is unset: no real samples here")
    folder = Path(name)
    if not folder.is_dir():
        pytest.fail(f"EMBEDPS_SAMPLES names {name!r}, which is not a directory")
    return folder


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> "Dataset":
    """A small dataset, for tests that do not change it."""
    from tests.builders import write_dataset

    return write_dataset(tmp_path_factory.mktemp("clicks") / "set", evaluation=(700, 433))


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory, clicks: "Dataset") -> Path:
    """A run of the tiny DLRM on `clicks`: each epoch is of a command that resumes the last one.

    All its checkpoints are kept: a base, two deltas, and a new base with the delta that leads to
    it. A test that writes into its directory takes `copied`.
    """
    from tests.builders import LEARN, TINY_DLRM, make_config

    path = tmp_path_factory.mktemp("history") / "m"
    fields = {"model": "dlrm", "num_shards": 2, "keep_secs": 1e6, **LEARN}
    for epochs in (1, 2, 3):
        config = make_config(clicks, path, epochs=epochs, **fields)
        embedps.Trainer.from_config(config, TINY_DLRM).fit()
    return path


@pytest.fixture
def copied(history: Path, tmp_path: Path) -> Path:
    """A copy of `history`, of this test alone."""
    return Path(shutil.copytree(history, tmp_path / "m"))


@pytest.fixture(scope="session")
def scores(history: Path, clicks: "Dataset") -> Callable[[int], "np.ndarray"]:
    """Gives the scores of a checkpoint of `history`: those of `embedps.load`, of the eval split."""
    from tests.builders import read_split

    table = read_split(clicks)
    return functools.cache(
        lambda number: embedps.load(history, number=number).predict(table)["score"]
    )


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple["Dataset", Path]:
    """A dataset with lists, and a run of the model of all kinds of tables on it."""
    from tests.builders import MIXED, make_trainer, write_dataset

    folder = tmp_path_factory.mktemp("mixed")
    dataset = write_dataset(folder / "set", evaluation=(700, 433), whole=True)
    make_trainer(dataset, folder / "m", recommender=MIXED).fit()
    return dataset, folder / "m"


@pytest.fixture(scope="session")
def s3_bucket() -> Iterator[str]:
    """An S3 server of this process, told to all that asks the environment: gives s3://BUCKET."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bucket", method="PUT")).close()
    told = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        yield "s3://bucket"
    server.stop()


@pytest.fixture
def s3_dir(s3_bucket: str, request: pytest.FixtureRequest) -> str:
    """A place in an S3 bucket of this test alone."""
    return f"{s3_bucket}/{re.sub('[^A-Za-z0-9]+', '-', request.node.nodeid)}"

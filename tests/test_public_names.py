"""`import embedps`: the public names, where they come from, and what the import costs."""

import importlib
import json
from typing import Any

import pytest

import embedps
from tests.builders import ROOT
from tests.commands import run

STUB = (ROOT / "embedps" / "__init__.pyi").read_text()
NEED_NO_TENSORFLOW = (
    "Adagrad",
    "Callback",
    "Chance",
    "CheckpointConfig",
    "ClusterConfig",
    "Dataset",
    "EarlyStopping",
    "EvaluationConfig",
    "EvictionConfig",
    "FeatureSpec",
    "FitResult",
    "Ftrl",
    "Initializer",
    "LazyAdam",
    "LostWorker",
    "MinCount",
    "MinNorm",
    "MlflowCallback",
    "OptimizerConfig",
    "Recommender",
    "RecoveryEnd",
    "ReduceLearningRate",
    "RowwiseAdagrad",
    "RunControl",
    "SGD",
    "SavedCheckpoint",
    "SizeLimit",
    "TableOptions",
    "TableSpec",
    "Tiered",
    "TimeToLive",
    "TrainConfig",
    "Transforms",
    "UnitEnd",
    "__version__",
    "errors",
    "follow",
)
NEED_TENSORFLOW = (
    "Candidates",
    "ClickMetrics",
    "ClickModel",
    "Coordinator",
    "DatasetFunction",
    "Embeddings",
    "LocalCluster",
    "Negatives",
    "RetrievalMetrics",
    "SaveCheckpoints",
    "Trainer",
    "bpr_loss",
    "connect",
    "cosine_contrastive_loss",
    "describe_dataset",
    "in_batch_softmax_loss",
    "load",
    "fingerprint",
    "read",
)


def test_these_are_the_public_names():
    assert sorted(embedps.__all__) == sorted([*NEED_NO_TENSORFLOW, *NEED_TENSORFLOW])


@pytest.mark.parametrize("name", sorted({*embedps.__all__} - {"__version__", "errors"}))
def test_a_public_name_is_what_its_module_has(name):
    found = getattr(embedps, name)
    assert f"from {found.__module__.removeprefix('embedps')} import {name} as {name}\n" in STUB
    assert getattr(importlib.import_module(found.__module__), name) is found
    assert vars(embedps)[name] is found  # the second use asks no module


def test_dir_lists_the_public_names():
    assert set(embedps.__all__) <= set(dir(embedps))


def test_star_import_gives_the_public_names():
    found: dict[str, object] = {}
    exec("from embedps import *", found)
    assert set(embedps.__all__) <= set(found)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="No embedps attribute Trainr"):
        getattr(embedps, "Trainr")  # noqa: B009


def test_types_are_shipped():
    assert (ROOT / "embedps" / "py.typed").is_file()


def _in_a_process(program: str) -> Any:
    return json.loads(run("-c", f"import json, sys\n{program}", timeout=60).stdout)


def test_import_reads_only_the_standard_library_a_loader_and_few_modules_of_ours():
    program = (
        "before = set(sys.modules)\n"
        "import embedps\n"
        "new = sorted(set(sys.modules) - before)\n"
        "print(json.dumps([x for x in new if x.split('.')[0] not in sys.stdlib_module_names]))"
    )
    ours = ["embedps", "embedps.console", "embedps.console.tf_startup", "lazy_loader"]
    assert _in_a_process(program) == ours


def test_names_that_need_no_tensorflow_do_not_import_it_nor_beam():
    program = (
        "import embedps, embedps.data.dataset, embedps.features.transforms\n"
        f"found = [getattr(embedps, name) for name in {NEED_NO_TENSORFLOW!r}]\n"
        "print(json.dumps(sorted({'apache_beam', 'tensorflow'} & set(sys.modules))))"
    )
    assert _in_a_process(program) == []

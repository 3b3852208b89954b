"""embedps: recommender training whose embedding tables are partitioned over parameter servers.

The names of `__all__` are the public API. Each is imported from its module when it is first used,
so `import embedps` is fast, and loads TensorFlow only for a name that needs it.
"""

import importlib
import os
from typing import TYPE_CHECKING

from embedps import errors
from embedps.console import tf_startup

if TYPE_CHECKING:
    from embedps.checkpoint.follow import follow
    from embedps.cluster.local_cluster import LocalCluster
    from embedps.data.dataset import Dataset
    from embedps.engine.click_model import ClickModel
    from embedps.engine.recommender import Recommender
    from embedps.evaluation.loaded_model import load
    from embedps.features.transforms import Transforms
    from embedps.keras.checkpoints import SaveCheckpoints
    from embedps.keras.input import read
    from embedps.layers.candidates import Candidates
    from embedps.layers.embeddings import Embeddings
    from embedps.layers.losses import (
        Negatives,
        bpr_loss,
        cosine_contrastive_loss,
        in_batch_softmax_loss,
    )
    from embedps.layers.retrieval_metrics import RetrievalMetrics
    from embedps.metrics import ClickMetrics
    from embedps.run.checkpoint_config import CheckpointConfig
    from embedps.run.cluster_config import ClusterConfig
    from embedps.run.config import TrainConfig
    from embedps.run.evaluation_config import EvaluationConfig
    from embedps.run.eviction_config import EvictionConfig
    from embedps.run.optimizer_config import OptimizerConfig
    from embedps.tables.admission import Chance, MinCount
    from embedps.tables.eviction import MinNorm, SizeLimit, TimeToLive
    from embedps.tables.optimizers import SGD, Adagrad, Ftrl, LazyAdam, RowwiseAdagrad
    from embedps.tables.specs import FeatureSpec, Initializer, TableSpec
    from embedps.training.callbacks import Callback, EarlyStopping, ReduceLearningRate
    from embedps.training.fit_result import FitResult
    from embedps.training.trainer import Trainer

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adagrad",
    "Callback",
    "Candidates",
    "Chance",
    "CheckpointConfig",
    "ClickMetrics",
    "ClickModel",
    "ClusterConfig",
    "Dataset",
    "EarlyStopping",
    "Embeddings",
    "EvaluationConfig",
    "EvictionConfig",
    "FeatureSpec",
    "FitResult",
    "Ftrl",
    "Initializer",
    "LazyAdam",
    "LocalCluster",
    "MinCount",
    "MinNorm",
    "Negatives",
    "OptimizerConfig",
    "Recommender",
    "ReduceLearningRate",
    "RetrievalMetrics",
    "RowwiseAdagrad",
    "SaveCheckpoints",
    "SizeLimit",
    "TableSpec",
    "TimeToLive",
    "TrainConfig",
    "Trainer",
    "Transforms",
    "__version__",
    "bpr_loss",
    "cosine_contrastive_loss",
    "errors",
    "follow",
    "in_batch_softmax_loss",
    "load",
    "read",
]

_MODULE_OF = {
    "SGD": "tables.optimizers",
    "Adagrad": "tables.optimizers",
    "Callback": "training.callbacks",
    "Candidates": "layers.candidates",
    "Chance": "tables.admission",
    "CheckpointConfig": "run.checkpoint_config",
    "ClickMetrics": "metrics",
    "ClickModel": "engine.click_model",
    "ClusterConfig": "run.cluster_config",
    "Dataset": "data.dataset",
    "EarlyStopping": "training.callbacks",
    "Embeddings": "layers.embeddings",
    "EvaluationConfig": "run.evaluation_config",
    "EvictionConfig": "run.eviction_config",
    "FeatureSpec": "tables.specs",
    "FitResult": "training.fit_result",
    "Ftrl": "tables.optimizers",
    "Initializer": "tables.specs",
    "LazyAdam": "tables.optimizers",
    "LocalCluster": "cluster.local_cluster",
    "MinCount": "tables.admission",
    "MinNorm": "tables.eviction",
    "Negatives": "layers.losses",
    "OptimizerConfig": "run.optimizer_config",
    "Recommender": "engine.recommender",
    "ReduceLearningRate": "training.callbacks",
    "RetrievalMetrics": "layers.retrieval_metrics",
    "RowwiseAdagrad": "tables.optimizers",
    "SaveCheckpoints": "keras.checkpoints",
    "SizeLimit": "tables.eviction",
    "TableSpec": "tables.specs",
    "TimeToLive": "tables.eviction",
    "TrainConfig": "run.config",
    "Trainer": "training.trainer",
    "Transforms": "features.transforms",
    "bpr_loss": "layers.losses",
    "cosine_contrastive_loss": "layers.losses",
    "follow": "checkpoint.follow",
    "in_batch_softmax_loss": "layers.losses",
    "load": "evaluation.loaded_model",
    "read": "keras.input",
}

# TFRS and ParameterServerStrategy work with Keras 2. TensorFlow takes it from tf-keras if it is
# told so before its first import.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
# Log errors only: what an op refuses would be logged as a warning, and it is raised anyway.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf_startup.prepare_first_import()


if not TYPE_CHECKING:  # a type checker would take any name to be there

    def __getattr__(name: str) -> object:
        """Imports a public name when it is first used (PEP 562)."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Lists the public names, whether they were used or not."""
    return sorted({*globals(), *__all__})

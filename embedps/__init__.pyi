"""Where each public name comes from: `embedps/__init__.py` reads it, as type checkers do."""

from . import errors as errors
from .checkpoint.follow import follow as follow
from .cluster.local_cluster import LocalCluster as LocalCluster
from .data.dataset import Dataset as Dataset
from .data.dataset_function import DatasetFunction as DatasetFunction
from .data.dataset_function import describe_dataset as describe_dataset
from .engine.click_model import ClickModel as ClickModel
from .engine.recommender import Recommender as Recommender
from .evaluation.loaded_model import load as load
from .features.transforms import Transforms as Transforms
from .keras.checkpoints import SaveCheckpoints as SaveCheckpoints
from .keras.input import read as read
from .layers.candidates import Candidates as Candidates
from .layers.embeddings import Embeddings as Embeddings
from .layers.live_tables import connect as connect
from .layers.losses import Negatives as Negatives
from .layers.losses import bpr_loss as bpr_loss
from .layers.losses import cosine_contrastive_loss as cosine_contrastive_loss
from .layers.losses import in_batch_softmax_loss as in_batch_softmax_loss
from .layers.retrieval_metrics import RetrievalMetrics as RetrievalMetrics
from .layers.text_ids import fingerprint as fingerprint
from .metrics import ClickMetrics as ClickMetrics
from .run.checkpoint_config import CheckpointConfig as CheckpointConfig
from .run.cluster_config import ClusterConfig as ClusterConfig
from .run.config import TrainConfig as TrainConfig
from .run.evaluation_config import EvaluationConfig as EvaluationConfig
from .run.eviction_config import EvictionConfig as EvictionConfig
from .run.optimizer_config import OptimizerConfig as OptimizerConfig
from .tables.admission import Chance as Chance
from .tables.admission import MinCount as MinCount
from .tables.eviction import MinNorm as MinNorm
from .tables.eviction import SizeLimit as SizeLimit
from .tables.eviction import TimeToLive as TimeToLive
from .tables.optimizers import SGD as SGD
from .tables.optimizers import Adagrad as Adagrad
from .tables.optimizers import Ftrl as Ftrl
from .tables.optimizers import LazyAdam as LazyAdam
from .tables.optimizers import RowwiseAdagrad as RowwiseAdagrad
from .tables.specs import FeatureSpec as FeatureSpec
from .tables.specs import Initializer as Initializer
from .tables.specs import TableSpec as TableSpec
from .tables.table_options import TableOptions as TableOptions
from .training.callbacks import Callback as Callback
from .training.callbacks import EarlyStopping as EarlyStopping
from .training.callbacks import ReduceLearningRate as ReduceLearningRate
from .training.callbacks import RunControl as RunControl
from .training.fit_result import FitResult as FitResult
from .training.mlflow_callback import MlflowCallback as MlflowCallback
from .training.run_events import LostWorker as LostWorker
from .training.run_events import RecoveryEnd as RecoveryEnd
from .training.run_events import SavedCheckpoint as SavedCheckpoint
from .training.run_events import UnitEnd as UnitEnd
from .training.trainer import Trainer as Trainer

__all__: list[str]
__version__: str

"""Embedding tables: their declarations, their groups, and the lookups and updates of a step."""

from embedps.tables.admission import Chance, MinCount
from embedps.tables.eviction import MinNorm, SizeLimit, TimeToLive
from embedps.tables.optimizers import SGD, Adagrad, Ftrl, LazyAdam, Optimizer, RowwiseAdagrad
from embedps.tables.specs import FeatureSpec, Initializer, TableSpec

__all__ = [
    "SGD",
    "Adagrad",
    "Chance",
    "FeatureSpec",
    "Ftrl",
    "Initializer",
    "LazyAdam",
    "MinCount",
    "MinNorm",
    "Optimizer",
    "RowwiseAdagrad",
    "SizeLimit",
    "TableSpec",
    "TimeToLive",
]

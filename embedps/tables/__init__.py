"""Embedding tables: their declarations, their groups, and the lookups and updates of a step."""

from embedps.tables.admission import *  # noqa: F403
from embedps.tables.eviction import *  # noqa: F403
from embedps.tables.optimizers import *  # noqa: F403
from embedps.tables.specs import FeatureSpec as FeatureSpec
from embedps.tables.specs import Initializer as Initializer
from embedps.tables.specs import TableSpec as TableSpec
from embedps.tables.tiered import Tiered as Tiered

"""Wide & Deep (Cheng et al. 2016, arXiv:1606.07792): a linear part and a deep part, added.

A row has the id's weight in the wide part and its vector in the deep part. Crossed columns of the
wide part are features of the dataset: a schema declares them (`cross = ["site_id", "app_id"]`).
"""

import dataclasses

from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender

from . import deepfm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(deepfm.Config):
    """Wide & Deep's options: those of DeepFM."""


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes a Wide & Deep model over a dataset's columns.

    Raises:
      UsageError: the dataset has no categorical column.
    """
    return deepfm.make_added("wide_deep", config, dataset, pairwise=False)

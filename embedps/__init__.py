"""embedps: recommender training whose embedding tables are partitioned over parameter servers."""

import os

from embedps.console import tf_startup

# TFRS and ParameterServerStrategy work with Keras 2, which TensorFlow takes from tf-keras when told
# so before its first import.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
# Errors only: what an op refuses is logged as a warning, and comes out as an exception anyway.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf_startup.watch()

__version__ = "0.1.0"

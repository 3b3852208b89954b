"""embedps: recommender training whose embedding tables are partitioned over parameter servers.

The names of `__init__.pyi` are the public API. Each is imported from its module when it is first
used, so `import embedps` is fast, and loads TensorFlow only for a name that needs it.
"""

import os

import lazy_loader

from embedps.console import tf_startup

__version__ = "0.1.0"


def _load_kernels() -> None:
    from embedps import kernels

    kernels.library()


# TFRS and ParameterServerStrategy work with Keras 2. TensorFlow takes it from tf-keras if it is
# told so before its first import.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
# Log errors only: what an op refuses would be logged as a warning, and it is raised anyway.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf_startup.prepare_first_import(before_servers=_load_kernels)

__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __dir__() -> list[str]:
    """Lists the public names, whether they were used or not."""
    return sorted({*globals(), *__all__})

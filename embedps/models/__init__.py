"""The model zoo, `models`, by a name that no folder of the user's hides: `embedps.models.dlrm`."""

from embedps.run.shipped_packages import share_modules

__path__ = share_modules("models")

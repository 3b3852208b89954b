"""The `pipelines`, by a name that no folder of the user's hides: `embedps.pipelines.transforms`."""

from embedps.run.shipped_packages import share_modules

__path__ = share_modules("pipelines")

"""The `pipelines`, by a name that no folder of the user's hides: `embedps.pipelines.transforms`."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[2] / "pipelines")]

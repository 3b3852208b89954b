"""The public name of a dataset's transforms, for serving code: `pipelines.transforms.Transforms`.

The implementation is in `pipelines/ingestion/transforms.py`. Import from here: this name stays.
"""

from .ingestion.transforms import Transforms

__all__ = ["Transforms"]

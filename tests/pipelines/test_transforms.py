"""The public names of the transforms; they need neither Beam nor TensorFlow."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pipelines
import pipelines.transforms
from pipelines.ingestion.transforms import Transforms
from tests.builders import ROOT


def test_public_names_are_the_implementation():
    assert pipelines.transforms.Transforms is Transforms
    assert pipelines.Transforms is Transforms


def test_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Transform'"):
        pipelines.Transform  # noqa: B018


@pytest.mark.parametrize("module", ["pipelines", "pipelines.transforms"])
def test_public_names_load_neither_beam_nor_tensorflow(module: str):
    code = (
        f"import sys, {module}; "
        "assert not {'apache_beam', 'tensorflow'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=ROOT)

"""Builds the C++ kernels whenever the package is built; everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))

from embedps.errors import KernelBuildError
from embedps.kernels.build import build


class BuildWithKernels(build_py):
    """Compiles the library in the source tree, from where an editable install runs it in place."""

    def run(self) -> None:
        try:
            build(verbose=True)
        except KernelBuildError as error:
            raise SystemExit(f"embedps: {error}") from None
        super().run()


class PlatformWheel(bdist_wheel):
    """A wheel for this platform and any Python: the library is TensorFlow's to load."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    """Says that the package is not pure Python, though setuptools itself compiles nothing."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=BinaryDistribution,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel},
)

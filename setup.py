"""Builds the C++ kernels with the package. Everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))

from embedps.errors import KernelBuildError
from embedps.kernels.build import build


class BuildWithKernels(build_py):
    """Compiles the library into the source tree, where an editable install uses it in place."""

    def run(self) -> None:
        try:
            build(verbose=True)
        except KernelBuildError as error:
            raise SystemExit(f"embedps: {error}") from None
        super().run()


class PlatformWheel(bdist_wheel):
    """Makes a wheel for this platform and any Python: TensorFlow loads the library."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    """Marks the package as not pure Python, although setuptools itself compiles nothing."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=BinaryDistribution,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel},
)

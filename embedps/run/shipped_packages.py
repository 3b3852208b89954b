"""Finds `models` and `pipelines` as they came with embedps, beside folders of the user's.

Each module has two names, such as `models.dlrm` and `embedps.models.dlrm`, and is loaded once.
Where a folder of the user's takes the first name, the second one leads to what came with embedps.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from embedps.errors import UsageError

FOLDER = Path(__file__).resolve().parents[2]
"""The folder of the packages."""


def is_shipped(package: str) -> bool:
    """Whether importing a package by its name gives the one that came with embedps.

    It does not where a folder or a module of that name is found first, for instance in the working
    directory.
    """
    found = sys.modules.get(package)
    spec = found.__spec__ if found is not None else importlib.util.find_spec(package)
    origin = None if spec is None else spec.origin
    return origin is not None and Path(origin).resolve() == FOLDER / package / "__init__.py"


def import_shipped(name: str) -> ModuleType:
    """Imports a module of `models` or `pipelines` that came with embedps."""
    package = name.partition(".")[0]
    return importlib.import_module(name if is_shipped(package) else f"embedps.{name}")


def check_shipped(*packages: str) -> None:
    """Checks that packages can be imported by their names; for code that imports them so.

    Raises:
      UsageError: a folder or a module of the user's has the same name.
    """
    for package in packages:
        if not is_shipped(package):
            raise UsageError(
                f"the package {package!r} must be {FOLDER / package}, but another folder "
                "or module of that name is found first: start the command in another directory"
            )


def share_modules(package: str) -> list[str]:
    """Makes `embedps.PACKAGE.x` the module `PACKAGE.x`, if that is what came with embedps.

    Returns:
      The path of the package, for `embedps.PACKAGE`.
    """
    sys.meta_path.insert(0, _Sharing(package))
    return [str(FOLDER / package)]


class _Sharing(MetaPathFinder):
    """Finds modules by their second name."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Gives the spec of a module that is loaded by its first name; None for any other."""
        if not name.startswith(f"embedps.{self._package}.") or not is_shipped(self._package):
            return None
        own = importlib.util.find_spec(name.removeprefix("embedps."))
        if own is None:
            return None
        is_package = own.submodule_search_locations is not None
        return ModuleSpec(name, _Shared(own), origin=own.origin, is_package=is_package)


class _Shared(Loader):
    """Loads a module by its first name."""

    def __init__(self, own: ModuleSpec) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(self._own.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # importlib has put the second name's there

    def get_code(self, name: str) -> CodeType | None:
        """Gives what `python -m` runs."""
        loader: Any = self._own.loader
        code: CodeType | None = loader.get_code(self._own.name)
        return code

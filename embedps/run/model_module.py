"""Finds the module of a model: a built-in one beside this package, or one of the user's."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from embedps.errors import UsageError

_PACKAGE = "models"
_FOLDER = Path(__file__).resolve().parents[2] / _PACKAGE


def find_model(name: str) -> ModuleType:
    """Imports the module of a model.

    A built-in name, such as dlrm, is the module of that name in the folder models/ beside this
    package, whatever else is called `models`. Any other name is a module on Python's path.

    Raises:
      UsageError: there is none, or it lacks a `Config` dataclass or a `make`.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"--model must be a module's name but got {name!r}")
    module = _built_in(name) if is_built_in(name) else _of_user(name)
    if not dataclasses.is_dataclass(getattr(module, "Config", None)) or not callable(
        getattr(module, "make", None)
    ):
        raise UsageError(
            f"--model {name}: {module.__name__} must have a dataclass Config and "
            f"make(config, dataset), but {module.__file__} does not"
        )
    return module


def is_built_in(name: str) -> bool:
    """Whether a name is that of a model which comes with embedps."""
    return name.isidentifier() and not name.startswith("_") and _path(name).is_file()


def is_shipped(package: str) -> bool:
    """Whether importing a package by its name gives the one that came with embedps.

    It does not where a folder or a module of that name is found first, for instance in the working
    directory.
    """
    found = sys.modules.get(package)
    spec = found.__spec__ if found is not None else importlib.util.find_spec(package)
    origin = None if spec is None else spec.origin
    return origin is not None and Path(origin).resolve() == _FOLDER.parent / package / "__init__.py"


def import_shipped(name: str) -> ModuleType:
    """Imports a module of `models` or `pipelines` that came with embedps.

    Where the package's name is taken by the user, it is the same module under the name
    `embedps.models` or `embedps.pipelines`.
    """
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
                f"the package {package!r} must be {_FOLDER.parent / package}, but another folder "
                "or module of that name is found first: start the command in another directory"
            )


def _path(name: str) -> Path:
    return _FOLDER / f"{name}.py"


def _built_in(name: str) -> ModuleType:
    module = import_shipped(f"{_PACKAGE}.{name}")
    if module.__file__ is None or Path(module.__file__).resolve() != _path(name):
        raise UsageError(
            f"--model {name}: {module.__name__} must be {_path(name)} but is {module.__file__}: "
            f"remove what puts another module of that name into sys.modules"
        )
    return module


def _of_user(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Of `package.module`, either may be absent. Anything else is missing inside of the module.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        built_in = ", ".join(sorted(p.stem for p in _FOLDER.glob("*.py") if is_built_in(p.stem)))
        raise UsageError(
            f"--model {name}: there is no module {name} on Python's path; built-in models are in "
            f"{_FOLDER} ({built_in}), and your own is a module, mymodel or package.module"
        ) from error

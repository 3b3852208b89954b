"""Finds the module of a model: a built-in one of `embedps.models`, or one of the user's."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType

from embedps import models
from embedps.errors import UsageError

_FOLDER = Path(models.__path__[0])


def find_model(name: str) -> ModuleType:
    """Imports the module of a model.

    A built-in name, such as dlrm, is the module of that name in `embedps.models`. Any other name is
    a module on Python's path.

    Raises:
      UsageError: there is none, or it lacks a `Config` dataclass or a `make`.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"--model must be a module's name but got {name!r}")
    built_in = is_built_in(name)
    module = importlib.import_module(f"{models.__name__}.{name}") if built_in else _of_user(name)
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
    is_name = name.isidentifier() and not name.startswith("_")
    return is_name and (_FOLDER / f"{name}.py").is_file()


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

"""Runs a function, or a command, in a process of its own.

A step that measures its own memory, or that changes its process, is a function of a benchmark's
module. `call` starts `python -m benchmarks.child`, which imports the module, calls the function
and prints what it returns as JSON.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

from embedps.errors import EmbedpsError


class ChildError(EmbedpsError):
    """A process of a benchmark failed."""


def call(function: str, **arguments: Any) -> Any:
    """Calls a function in a new process and returns what it returns.

    Args:
      function: of a module, such as "benchmarks.export:make".
      arguments: of the function; they, and what it returns, must be JSON's.

    Raises:
      ChildError: the process failed; it has written why to stderr.
    """
    done = subprocess.run(
        command(function, **arguments), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise ChildError(f"the process of {function} ended with {done.returncode}: see above")
    return json.loads(done.stdout.splitlines()[-1])


def command(function: str, **arguments: Any) -> list[str]:
    """Gives the command line that calls a function, for a process to start and to end."""
    return [sys.executable, "-m", "benchmarks.child", function, json.dumps(arguments)]


def run(module: str, *arguments: str) -> str:
    """Runs `python -m module` and returns what it printed.

    Raises:
      ChildError: it failed; the message has the end of what it printed.
    """
    line = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        told = f"{module} ended with {done.returncode}"
        raise ChildError(f"{told}: {' '.join(arguments)}: {done.stdout[-2000:]}")
    return done.stdout


def _main(function: str, arguments: str) -> None:
    module, _, name = function.partition(":")
    found = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])

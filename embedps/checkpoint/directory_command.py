"""Runs a command on a model directory's checkpoints, of those that a command line has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console import command_line, flags
from embedps.errors import UsageError

Commands: TypeAlias = Mapping[str, tuple[type[Any], Callable[[CheckpointDirectory, Any], int]]]
"""By name: the config, whose `directory` names the model directory, and what runs with both."""


def run(commands: Commands, arguments: Sequence[str], prog: str, about: str | None) -> int:
    """Runs the command that the first argument names; returns its exit code.

    Raises:
      UsageError: the command, a flag or the directory is wrong.
    """
    texts = {name: config.__doc__ or "" for name, (config, _) in commands.items()}
    name = command_line.choose(texts, arguments, prog, about)
    config, command = commands[name]
    read = flags.read(config, arguments[1:], f"{prog} {name}", config.__doc__)
    directory = CheckpointDirectory(read.directory)
    if not directory.path.is_dir():
        raise UsageError(f"there is no directory {str(directory.path)!r}")
    with command_line.sigterm_interrupts():
        return command(directory, read)

"""Runs a command on a model directory's checkpoints, of those that a command line has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.lease import LeaseRenewer
from embedps.checkpoint.refs import number_of
from embedps.console import command_line, flags
from embedps.errors import UsageError

Commands: TypeAlias = Mapping[str, tuple[type[Any], Callable[[CheckpointDirectory, Any], int]]]
"""By name: the config, whose `directory` names the model directory, and what runs with both.

The directory must be there, unless the config `makes_directory`."""


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
    if not directory.path.is_dir() and not getattr(read, "makes_directory", False):
        raise UsageError(f"there is no directory {str(directory.path)!r}")
    with command_line.sigterm_interrupts():
        return command(directory, read)


@contextlib.contextmanager
def leased(
    directory: CheckpointDirectory, given: int | str | None, command: str
) -> Iterator[Manifest]:
    """Reads a manifest, by default the newest, and keeps its files while the block reads them."""
    with LeaseRenewer(directory, holder=command, is_needed=False) as lease:
        if given is not None:
            number = number_of(directory, given)
            directory.read(number)  # which says what there is
            lease.hold(number)
            yield directory.read(number)
        elif manifest := lease.take_latest():
            yield manifest
        else:
            raise directory.holds_none()

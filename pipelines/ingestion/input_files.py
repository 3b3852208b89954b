"""Input files: finds those that patterns match, and opens them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from embedps.errors import UsageError

from .line_blocks import ByteStream


@dataclass(frozen=True, kw_only=True)
class InputTask:
    """One file to read: its position in the order of files, its path and its name in reports."""

    index: int
    path: str
    name: str
    bytes: int
    """The file's size when it was listed."""
    held_out: bool = False


def find_inputs(patterns: Sequence[str], eval_patterns: Sequence[str] = ()) -> list[InputTask]:
    """Lists the files that the patterns match, sorted by path.

    Args:
      patterns: paths or glob patterns on any file system that Beam knows.
      eval_patterns: the same for the files whose rows are held out.

    Raises:
      UsageError: a pattern matches no file, something else than a readable regular file, or a file
        of the other patterns too.
    """
    held_out = _match("--eval-input", eval_patterns)
    sizes = _match("--input", patterns)
    both = sorted(set(sizes) & set(held_out))
    if both:
        raise UsageError(f"--input and --eval-input must not both match {both[0]}")
    sizes |= held_out
    paths = sorted(sizes)
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [
        InputTask(
            index=i,
            path=path,
            name=path[len(folder) :].lstrip("/"),
            bytes=sizes[path],
            held_out=path in held_out,
        )
        for i, path in enumerate(paths)
    ]


def open_input(path: str) -> ByteStream:
    """Opens a file of any file system that Beam knows; its bytes are not decompressed."""
    stream: ByteStream = FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    return stream


def _match(flag: str, patterns: Sequence[str]) -> dict[str, int]:
    """Returns the size of each file that a flag's patterns match, by path."""
    sizes: dict[str, int] = {}
    for pattern in patterns:
        try:
            (match,) = FileSystems.match([pattern])
        except (BeamIOError, ValueError, OSError) as error:
            raise UsageError(f"{flag} {pattern}: cannot be listed: {error}") from None
        if not match.metadata_list:
            raise UsageError(f"{flag} {pattern}: must match a file, there is none")
        for file in match.metadata_list:
            _check_readable(flag, pattern, file.path)
            sizes[file.path] = file.size_in_bytes
    return sizes


def _check_readable(flag: str, pattern: str, path: str) -> None:
    """Raises UsageError for a local path that is not a readable file: a directory, a pipe."""
    if FileSystems.get_scheme(path) is not None:
        return
    hint = f"{flag} {pattern}: must match regular files that can be read"
    if os.path.isdir(path):
        raise UsageError(f"{hint}, {path} is a directory: give {path.rstrip('/')}/* for its files")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{hint}, {path} is a pipe or a device")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{hint}, {path} is not: give it read permission, or leave it out")

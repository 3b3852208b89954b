"""Input files: finds those that patterns and folders name, and opens them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from embedps.config_fields import check_text
from embedps.errors import UsageError

from .lake_files import LakeFile, LakeTable
from .lake_marks import check_plain
from .lake_tables import find_table

_WILDCARDS = "*?["
_HIDDEN = (".", "_")
PACKINGS = (".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True, kw_only=True)
class InputTask:
    """One file to read: its position in the order of files, its path and its name in reports.

    The name keeps every folder that has a column's value, such as `day=2024-05-01`.
    """

    index: int
    path: str
    name: str
    bytes: int
    """The file's size when it was listed."""
    held_out: bool = False
    of_lake: LakeFile | None = None
    """What the file is to a table of Delta Lake or Iceberg."""

    @property
    def folders(self) -> str:
        """The name, if its folders may have columns' values: a table's are only names."""
        return self.name if self.of_lake is None else ""

    def open(self) -> BinaryIO:
        """Opens the file; its bytes are not decompressed."""
        return open_input(self.path) if self.of_lake is None else self.of_lake.open()


def find_inputs(patterns: Sequence[str], eval_patterns: Sequence[str] = ()) -> list[InputTask]:
    """Lists the files that the patterns match, sorted by path.

    A folder stands for all files in it and below. Files and folders whose names begin with `.` or
    `_` are left out, unless a pattern names them.

    Args:
      patterns: paths, folders or glob patterns on any file system that Beam knows, and tables of
        Delta Lake or Iceberg, as `lake_tables.find_table` takes them.
      eval_patterns: the same for the files whose rows are held out.

    Raises:
      UsageError: a pattern matches no file, something else than a readable regular file, a file of
        the other patterns too, or a folder of files of several kinds.
    """
    held_out = _match("--eval-input", eval_patterns)
    found = _match("--input", patterns)
    both = sorted(set(found) & set(held_out))
    if both:
        raise UsageError(f"--input and --eval-input must not both match {both[0]}")
    return _tasks(found | held_out, set(held_out))


def tables_of(tasks: Iterable[InputTask]) -> list[LakeTable]:
    """Lists the tables of Delta Lake or Iceberg that files are of."""
    return [*dict.fromkeys(task.of_lake.table for task in tasks if task.of_lake is not None)]


def find_side_files(what: str, patterns: Sequence[str]) -> list[InputTask]:
    """Lists the files of a side table, as `find_inputs` does; `what` names it in messages."""
    return _tasks(_match(what, patterns), set())


def _tasks(found: Mapping[str, _Found], held_out: Collection[str]) -> list[InputTask]:
    paths = sorted(found)
    folders = [os.path.dirname(path) for path in paths]
    folder = ""
    if len({path.partition("://")[0] if "://" in path else "" for path in paths}) == 1:
        folder = os.path.commonpath(folders)
    parts = folder.split("/")
    kept = next((i for i, part in enumerate(parts) if "=" in part), len(parts))
    folder = "/".join(parts[:kept])
    return [
        InputTask(
            index=i,
            path=path,
            name=path[len(folder) :].lstrip("/"),
            bytes=found[path].bytes,
            held_out=path in held_out,
            of_lake=found[path].of_lake,
        )
        for i, path in enumerate(paths)
    ]


def open_input(path: str) -> BinaryIO:
    """Opens a file of any file system that Beam knows; its bytes are not decompressed."""
    stream: BinaryIO = FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    return stream


class _Found(NamedTuple):
    bytes: int
    of_lake: LakeFile | None = None


def _match(flag: str, patterns: Sequence[str]) -> dict[str, _Found]:
    """Finds the files that a flag's patterns match, by path."""
    found: dict[str, _Found] = {}
    for pattern in patterns:
        table = find_table(flag, pattern)
        if table is not None:
            mine = _files_of_table(flag, table)
            if twice := [path for path in mine if found.get(path, mine[path]) != mine[path]]:
                raise UsageError(f"{flag} must have each file once, {twice[0]} is in two versions")
            found |= mine
            continue
        if FileSystems.get_scheme(pattern) is None and os.path.isdir(pattern):
            sizes = {path: os.path.getsize(path) for path in _files_below(flag, pattern)}
            check_plain(flag, sizes)
            _check_one_kind(flag, pattern, list(sizes))
        else:
            sizes = _match_pattern(flag, pattern)
            check_plain(flag, sizes)
        for path in sizes:
            _check_readable(flag, pattern, path)
        found |= {path: _Found(size) for path, size in sizes.items()}
    return found


def _files_of_table(flag: str, table: LakeTable) -> dict[str, _Found]:
    """Lists a table's files by their paths, as the others' are.

    Raises:
      UsageError: there is none, or one is gone.
    """
    found = {}
    for path, size in table.files.files.items():
        whole = path.removeprefix("file://")
        if "://" not in whole and not whole.startswith("/"):
            whole = f"{table.location.rstrip('/')}/{path}"
        if "://" not in whole and not os.access(whole, os.R_OK):
            raise UsageError(
                f"{flag} {table.location}: the table's file {whole} must be there and readable, it "
                "is not: give a version whose files were not removed, or the table where it was "
                "written"
            )
        found[whole] = _Found(size, LakeFile(table=table, path=path))
    if not found:
        raise UsageError(f"{flag} {table.location}: the table must have rows, it has none")
    return found


def _match_pattern(flag: str, pattern: str) -> dict[str, int]:
    try:
        (match,) = FileSystems.match([pattern])
        if not match.metadata_list and not any(mark in pattern for mark in _WILDCARDS):
            # On other file systems than this machine's, a folder is no match.
            (match,) = FileSystems.match([pattern.rstrip("/") + "/**"])
            pattern = pattern.rstrip("/") + "/**" if match.metadata_list else pattern
    except (BeamIOError, ValueError, OSError) as error:
        raise UsageError(f"{flag} {pattern}: cannot be listed: {error}") from None
    found = {file.path: file.size_in_bytes for file in match.metadata_list}
    shown = {path: size for path, size in found.items() if not _is_hidden(path, pattern)}
    if not shown:
        others = "there is none"
        if found:
            others = f"there are only hidden ones, such as {min(found)}"
        raise UsageError(
            f"{flag} {pattern}: must match a file, {others}: a folder, given as it is, stands for "
            "all files below it"
        )
    return shown


def _is_hidden(path: str, pattern: str) -> bool:
    """Tells whether a name where the pattern has wildcards begins with . or _, which it has not."""
    at = min((pattern.index(mark) for mark in _WILDCARDS if mark in pattern), default=-1)
    if at < 0:
        return False
    start = pattern.rfind("/", 0, at) + 1
    if any(part.startswith(_HIDDEN) for part in pattern[start:].split("/")):
        return False
    depth = pattern[:start].count("/")
    return any(part.startswith(_HIDDEN) for part in path.split("/")[depth:])


def _files_below(flag: str, folder: str) -> Iterator[str]:
    """Yields the paths of a folder's files, those of its folders too.

    Raises:
      UsageError: there is none.
    """
    seen: set[str] = set()
    num_files = 0
    for parent, folders, files in os.walk(folder, followlinks=True):
        inner = {name: os.path.realpath(os.path.join(parent, name)) for name in folders}
        # A link may lead back to a folder above it.
        folders[:] = [
            name for name in folders if not name.startswith(_HIDDEN) and inner[name] not in seen
        ]
        seen.update(inner.values())
        for name in files:
            if not name.startswith(_HIDDEN):
                num_files += 1
                yield os.path.join(parent, name)
    if not num_files:
        raise UsageError(f"{flag} {folder}: must have a file, there is none that is not hidden")


def _check_one_kind(flag: str, folder: str, paths: Sequence[str]) -> None:
    """Raises UsageError for a folder with files of several endings, such as a README."""
    examples: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for path in sorted(paths):
        kind = _ending(path)
        counts[kind] += 1
        examples.setdefault(kind, path)
    if len(counts) > 1:
        listed = ", ".join(
            f"{count:,} of {kind or 'no ending'} such as {examples[kind]}"
            for kind, count in counts.most_common()
        )
        (kind, _), *_ = counts.most_common()
        hint = f"give a pattern, such as '{folder.rstrip('/')}/**{kind}'"
        raise UsageError(f"{flag} {folder}: must have files of one kind, it has {listed}: {hint}")


def _ending(path: str) -> str:
    """Returns what a file's name ends with, such as .tsv of a.tsv.gz; "" without letters."""
    name = os.path.basename(path)
    for packing in PACKINGS:
        name = name.removesuffix(packing)
    ending = os.path.splitext(name)[1]
    return ending if ending[1:].isalpha() else ""


def _check_readable(flag: str, pattern: str, path: str) -> None:
    """Raises UsageError for a local path that is not a readable file, such as a pipe."""
    if FileSystems.get_scheme(path) is not None:
        return
    check_text(f"{flag} {pattern}: a file's name", path)
    hint = f"{flag} {pattern}: must match regular files that can be read"
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{hint}, {path} is a pipe or a device")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{hint}, {path} is not: give it read permission, or leave it out")

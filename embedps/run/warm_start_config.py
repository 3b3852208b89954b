"""The options of a warm start: from whose rows and network a new run begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.refs import is_name, number_of
from embedps.config_fields import check, option
from embedps.errors import UsageError
from embedps.storage.object_store import as_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
    """Another run whose rows and network a new run begins with. A run that resumes ignores it."""

    model: str | None = option(
        None,
        "begin with the rows and the network of another run's newest checkpoint, by name, or of "
        "its manifest N, or of the one that a ref names",
        flag="from",
        metavar="MODEL[@N/REF]",
    )
    renamed: tuple[str, ...] = option(
        (),
        "tables, or variables of the network, that have another name in --from",
        flag="from_map",
        metavar="OLD=NEW",
        several=True,
    )
    vectors: tuple[str, ...] = option(
        (),
        "tables whose rows begin, and begin again when they return, with the vectors of a file, "
        "which this process reads as `embedps table import` does, over the rows of --from; other "
        "ids begin as their table declares",
        flag="from_vectors",
        metavar="TABLE=FILE",
        several=True,
    )
    dims: Literal["refuse", "cut", "pad"] = option(
        "refuse",
        "what becomes of tables of another dim in --from: refused; cut, if they have more floats; "
        "padded with zeros, if they have fewer",
        flag="from_dims",
    )
    optimizer_slots: bool = option(
        True,
        "begin with the optimizer's state of --from too, where the optimizer is of the same kind",
        flag="from_optimizer_slots",
    )

    def __post_init__(self) -> None:
        check(self)
        if self.model is None and self.renamed:
            raise UsageError("--from-map needs --from MODEL")
        self.files()
        names = self.names()
        if len(set(names.values())) < len(names):
            raise UsageError(f"from_map must give each new name once but got {self.renamed}")

    def names(self) -> Mapping[str, str]:
        """Gives the new names by the old ones.

        Raises:
          UsageError: a pair is malformed, or an old name stands twice.
        """
        return _pairs("from_map", "OLD=NEW, each OLD", self.renamed)

    def files(self) -> Mapping[str, str]:
        """Gives the files of vectors by table.

        Raises:
          UsageError: a pair is malformed, or a table stands twice.
        """
        return _pairs("from_vectors", "TABLE=FILE, each TABLE", self.vectors)

    def source(self) -> tuple[CheckpointDirectory, int | None]:
        """Gives the other run's directory, and the manifest's number; None is the newest.

        Raises:
          UsageError: there is no such ref.
          CheckpointError: the ref cannot be read.
        """
        whole = self.model or ""
        path, _, name = whole.rpartition("@")
        directory = CheckpointDirectory(as_path(path or whole))
        if path and name.isdecimal():
            return directory, int(name)
        if path and is_name(name) and not CheckpointDirectory(as_path(whole)).numbers():
            return directory, number_of(directory, name)
        return CheckpointDirectory(as_path(whole)), None


def _pairs(name: str, wanted: str, given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in given:
        first, _, second = pair.partition("=")
        if not first or not second or first in found:
            raise UsageError(f"{name} must have pairs {wanted} once, but got {pair!r}")
        found[first] = second
    return found

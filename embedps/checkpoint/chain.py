"""Chains of saves: a reader's position in a run, and the saves that bring it up to date."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from embedps.checkpoint.format.manifest import Manifest, SaveSet
from embedps.errors import CheckpointError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position:
    """Identifies the rows as of a save; equal positions mean equal rows.

    Attributes:
      history: the manifest's history; empty in version 1, which has no histories.
      number: the save's number.
    """

    history: str
    number: int

    def to_json(self) -> str:
        """Writes the position as JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Position:
        """Reads `to_json`'s text.

        Raises:
          CheckpointError: the text is not of a position.
        """
        try:
            content: dict[str, Any] = json.loads(text)
            return cls(history=str(content["history"]), number=int(content["number"]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise CheckpointError(
                f"a position must be a text that Position.to_json wrote but is {text[:200]!r}"
            ) from error


def position_of(manifest: Manifest) -> Position:
    """Returns the position of a manifest's rows."""
    return Position(history=manifest.history, number=manifest.save_number)


def continuation(manifest: Manifest, position: Position | None) -> tuple[SaveSet, ...] | None:
    """Returns the saves that turn a position's rows into a manifest's rows, in order.

    A delta holds every change since its `since` save. So it may be applied to the rows of that save
    or of any later one.

    Returns:
      The saves; None if no saves do this. Then the reader must load the whole chain into empty
      tables.
    """
    if position is None or position.history != manifest.history:
        return None
    if position.number == manifest.save_number:
        return ()
    for i, save in enumerate(manifest.chain):
        if save.number == position.number:
            return manifest.chain[i + 1 :]
        if save.since is not None and save.since <= position.number < save.number:
            return manifest.chain[i:]
    return None


def shortest_path(manifests: Iterable[Manifest], position: Position) -> list[Manifest]:
    """Finds the fewest manifests through which a reader gets from a position to the newest rows.

    Returns:
      The manifests in order. Each is reached from the one before by its saves. If the newest cannot
      be reached, the path ends as far on as possible.
    """
    newest_first = sorted(manifests, key=lambda manifest: manifest.number, reverse=True)
    found: list[Manifest] = []
    while True:
        here = position if not found else position_of(found[-1])
        ahead = (m for m in newest_first if m.save_number > here.number)
        following = next((m for m in ahead if continuation(m, here) is not None), None)
        if following is None:
            return found
        found.append(following)


def split_head(
    chain: Sequence[SaveSet],
) -> tuple[Sequence[SaveSet], Sequence[SaveSet]]:
    """Splits a chain into its first saves and the deltas since.

    The first saves are the base and, if the base replaced an older chain's, the delta that links
    them: that delta is since a save of the older chain.
    """
    second = chain[1].since if len(chain) > 1 else None
    head = 2 if second is not None and second < chain[0].number else 1
    return chain[:head], chain[head:]


def extend(chain: tuple[SaveSet, ...], delta: SaveSet) -> tuple[SaveSet, ...]:
    """Adds a delta to a chain, and leaves out the deltas whose changes the new one holds too."""
    since = -1 if delta.since is None else delta.since
    return (*(s for s in chain if s.since is None or s.since < since), delta)


def rebase(chain: tuple[SaveSet, ...], base: SaveSet | None) -> tuple[SaveSet, ...]:
    """Replaces the start of a chain by a base that was written beside it, if there is one.

    The shards started to write the base after the last save with a smaller number, and finished it
    before the chain's next delta. So that delta and all saves with a greater number bring the base
    up to date.
    """
    if base is None or base.number <= chain[0].number:  # a compaction made a newer base
        return chain
    return (base, *(save for save in chain if save.number > base.number))


def replace_start(chain: tuple[SaveSet, ...], base: SaveSet) -> tuple[SaveSet, ...] | None:
    """Replaces the first saves of a chain by a base that holds the rows as of a save's number.

    Returns:
      The chain; None if it begins after that save, or cannot give the rows as of it.
    """
    if base.number <= chain[0].number or base.number > chain[-1].number:
        return None
    rest = tuple(save for save in chain if save.number > base.number)
    if rest and (rest[0].since is None or rest[0].since > base.number):
        return None
    return (base, *rest)

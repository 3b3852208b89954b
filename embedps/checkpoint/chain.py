"""A place in a run's history, and the saves that lead on from it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from embedps.checkpoint.format.manifest import Manifest, SaveSet
from embedps.errors import CheckpointError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position:
    """The rows as of a save; two of the same history and number are the same rows.

    Attributes:
      history: the manifest's; empty in version 1, which tells no histories apart.
      number: the save's.
    """

    history: str
    number: int

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Position:
        """Reads `to_json`'s text.

        Raises:
          CheckpointError: it is another.
        """
        try:
            content: dict[str, Any] = json.loads(text)
            return cls(history=str(content["history"]), number=int(content["number"]))
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"a position must be what Position.to_json gave but is {text!r}"
            ) from error


def position_of(manifest: Manifest) -> Position:
    """Where a manifest is."""
    return Position(history=manifest.history, number=manifest.save_number)


def continuation(manifest: Manifest, position: Position | None) -> tuple[SaveSet, ...] | None:
    """The saves that bring the rows of a position to a manifest's, in order.

    A delta may be applied to the rows of the save that it is since, and of any later one: it holds
    every change since.

    Returns:
      None where there is no way from there: the whole chain has to be read, into empty tables.
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
    """The fewest manifests by which a reader at a position comes as far as it can, in order."""
    newest_first = sorted(manifests, key=lambda manifest: manifest.number, reverse=True)
    found: list[Manifest] = []
    while True:
        here = position if not found else position_of(found[-1])
        ahead = (m for m in newest_first if m.save_number > here.number)
        step = next((m for m in ahead if continuation(m, here) is not None), None)
        if step is None:
            return found
        found.append(step)


def split_head(
    chain: Sequence[SaveSet],
) -> tuple[Sequence[SaveSet], Sequence[SaveSet]]:
    """What a new chain begins with, and the deltas since.

    A base that follows an older chain has a delta with it, which is since a save of that chain.
    """
    second = chain[1].since if len(chain) > 1 else None
    head = 2 if second is not None and second < chain[0].number else 1
    return chain[:head], chain[head:]


def extend(chain: tuple[SaveSet, ...], delta: SaveSet) -> tuple[SaveSet, ...]:
    """A chain with one more delta, without those whose changes that one holds too."""
    since = -1 if delta.since is None else delta.since
    return (*(s for s in chain if s.since is None or s.since < since), delta)


def rebase(chain: tuple[SaveSet, ...], base: SaveSet | None) -> tuple[SaveSet, ...]:
    """A chain that begins with a base which was written beside it, if there is one.

    The base was begun after the last save with a lesser number, and ended before the next delta
    that the chain gets: that one and those with a greater number bring it up to date.
    """
    if base is None or base.number <= chain[0].number:  # a compaction's is newer
        return chain
    return (base, *(save for save in chain if save.number > base.number))


def replace_start(chain: tuple[SaveSet, ...], base: SaveSet) -> tuple[SaveSet, ...] | None:
    """A chain that begins with a base which holds the rows as of a save's number.

    Returns:
      None where the chain begins after that save, or does not hold the rows as of it.
    """
    if base.number <= chain[0].number or base.number > chain[-1].number:
        return None
    rest = tuple(save for save in chain if save.number > base.number)
    if rest and (rest[0].since is None or rest[0].since > base.number):
        return None
    return (base, *rest)

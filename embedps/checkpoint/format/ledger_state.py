"""The ledger's state in a manifest: the input position where a run resumes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embedps.checkpoint.format.manifest import is_count
from embedps.errors import CorruptCheckpointError

_COUNTS = ("units_per_epoch", "prefix", "num_attempts", "repeated")
_LISTS = ("beyond", "doing", "attempts")


def check_ledger(ledger: Mapping[str, Any], path: Path) -> None:
    """Checks that a run can resume from a manifest's ledger.

    Raises:
      CorruptCheckpointError: it cannot; names path, field, expected and found.
    """
    _check(path, ledger, "dataset", "a text", isinstance(ledger.get("dataset"), str))
    for name in _COUNTS:
        _check(path, ledger, name, "an integer from 0 on", is_count(ledger.get(name)))
    for name in _LISTS:
        each = ledger.get(name)
        fits = isinstance(each, list) and all(map(is_count, each))
        _check(path, ledger, name, "a list of integers from 0 on", fits)
    if "set_aside" in ledger:
        each = ledger["set_aside"]
        fits = isinstance(each, list) and all(map(is_count, each))
        _check(path, ledger, "set_aside", "a list of integers from 0 on", fits)
    growing = all(a < b for a, b in itertools.pairwise([ledger["prefix"], *ledger["beyond"]]))
    _check(path, ledger, "beyond", f"numbers that grow from {ledger['prefix']} on", growing)
    units = len(ledger["doing"])
    fits = len(ledger["attempts"]) == units
    _check(path, ledger, "attempts", f"one for each of {units} units", fits)
    fits = len(set(ledger["doing"])) == units
    _check(path, ledger, "doing", "each unit once", fits)
    if "watched" in ledger:
        watched = ledger["watched"]
        fits = isinstance(watched, Mapping) and is_count(watched.get("first_unit"))
        _check(path, ledger, "watched", "an object with a first_unit from 0 on", fits)
        fits = is_count(watched.get("left_out_rows", 0))
        _check(path, ledger, "watched", "left_out_rows from 0 on", fits)


def _check(path: Path, ledger: Mapping[str, Any], name: str, expected: str, fits: bool) -> None:
    if not fits:
        found = f"{ledger[name]!r:.60}" if name in ledger else "nothing"
        raise CorruptCheckpointError(
            f"{path}: field 'ledger.{name}': expected {expected}, found {found}"
        )

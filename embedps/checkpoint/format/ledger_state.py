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
_MADE_OF = ("batch_size", "unit_rows", "seed", "rows", "files")
_MAX_STEPS = 2**32
_MAX_DIVISIONS = 64
_NOTHING_BEGUN = {"doing": [], "attempts": [], "num_attempts": 0, "repeated": 0}


def check_ledger(ledger: Mapping[str, Any], path: Path, *, divisions: int = _MAX_DIVISIONS) -> None:
    """Checks that a run can resume from a manifest's ledger.

    Args:
      ledger: of the manifest.
      path: of the manifest.
      divisions: how many other divisions of the same rows may be nested in it.

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
    _check_division(ledger, path)
    _check_stage(ledger, path, divisions)


def _check_division(ledger: Mapping[str, Any], path: Path) -> None:
    """Checks the fields that tell how a stage goes on from another."""
    if "made_of" in ledger:
        made = ledger["made_of"]
        fits = isinstance(made, Mapping) and all(map(is_count, map(made.get, _MADE_OF)))
        fits = fits and 1 <= made["batch_size"] <= made["unit_rows"]
        share = made.get("inner_share", 0.0) if fits else None
        fold = made.get("inner_fold", 0) if fits else 0
        fits = isinstance(share, float) and 0 <= share < 1 and is_count(fold)
        fits = fits and isinstance(share, float) and (fold + 1) * share <= 1
        _check(path, ledger, "made_of", "the options that make units", fits)
    if "end_step" in ledger:
        fits = is_count(ledger["end_step"]) and ledger["end_step"] < _MAX_STEPS
        _check(path, ledger, "end_step", "an integer from 0 to below 2^32", fits)
    if "columns" in ledger:
        columns = ledger["columns"]
        fits = isinstance(columns, list) and all(
            isinstance(each, list) and [*map(type, each)] == [str, str] for each in columns
        )
        _check(path, ledger, "columns", "pairs of a name and a type", fits)
    if "visited" in ledger:
        visited = ledger["visited"]
        fits = isinstance(visited, Mapping) and all(map(is_count, visited.values()))
        _check(path, ledger, "visited", "counts", fits)


def _check_stage(ledger: Mapping[str, Any], path: Path, divisions: int) -> None:
    stage = ledger.get("stage", {})
    fits = isinstance(stage, Mapping) and is_count(stage.get("first_step", 0))
    fits = fits and stage.get("first_step", 0) < _MAX_STEPS
    _check(path, ledger, "stage", "an object with a first_step from 0 to below 2^32", fits)
    history = stage.get("history", [])
    fits = isinstance(history, list) and all(
        isinstance(each, Mapping)
        and all(is_count(each.get(name)) for name in ("visited_rows", "first_step"))
        for each in history
    )
    _check(path, ledger, "stage", "a history with counts of rows and steps", fits)
    if "before" in stage:
        fits = isinstance(stage["before"], Mapping) and "made_of" in stage["before"]
        fits = fits and divisions > 0
        _check(path, ledger, "stage", f"at most {_MAX_DIVISIONS} divisions before", fits)
        check_ledger({**_NOTHING_BEGUN, **stage["before"]}, path, divisions=divisions - 1)


def _check(path: Path, ledger: Mapping[str, Any], name: str, expected: str, fits: bool) -> None:
    if not fits:
        found = f"{ledger[name]!r:.60}" if name in ledger else "nothing"
        raise CorruptCheckpointError(
            f"{path}: field 'ledger.{name}': expected {expected}, found {found}"
        )

"""The digest of a dataset's transforms: two datasets of one digest hold values of one meaning.

It is of what decides the values: each feature's sources and steps, with what the steps learned, and
how labels and ids are read. How the input was written (delimiter, packing, order of columns) is not
in it. `_dataset.json` has it, each shard has it under KEY, and a checkpoint of a run too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedps.errors import DatasetError
from embedps.storage import file_io
from embedps.storage.file_io import checksum_bytes

KEY = b"embedps.transforms"
"""Of a Parquet file's metadata, and of an Arrow schema's."""

Kept = Callable[[str], npt.NDArray[np.int64]]
"""Gives the ids that a `min_count` keeps, ascending, by the name of its file."""
_LEARNED = ("standardize", "min_count")
_LABEL_SETTINGS = ("task", "classes", "positive_from")
_MOST_EXACT = 1 << 53


def declared(table: Mapping[str, Any]) -> dict[str, Any]:
    """Gives what a table declares of its values, by name, without what steps learned.

    Args:
      table: its JSON form (embedps/features/table_schema.py), fitted or not.
    """
    return {name: _content(node, None) for name, node in _nodes(table).items()}


def digest_of(table: Mapping[str, Any], kept: Kept, without: Collection[str] = frozenset()) -> str:
    """Computes the digest of a fitted table, or of all but some of its features; 16 hex digits."""
    table = {**table, "feature": [f for f in table["feature"] if f["name"] not in without]}

    def ids(file: str) -> str:
        return checksum_bytes(np.ascontiguousarray(kept(file), "<i8").tobytes())

    content = {name: _content(node, ids) for name, node in _nodes(table).items()}
    text = json.dumps(_exact(content), sort_keys=True, separators=(",", ":"))
    return checksum_bytes(text.encode())


def learned_features(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Lists the features with a step that learns from rows."""
    return tuple(
        feature["name"]
        for feature in table["feature"]
        if any(op in _LEARNED for step in feature["transform"] for op in _as_node(step))
    )


def read_digest(path: Path, without: Collection[str] = frozenset()) -> tuple[str, tuple[str, ...]]:
    """Computes the digest of a stored `_transforms.json`, and lists the features that learned.

    Those of some names may be left out.

    Gives an empty digest if the file is absent.

    Raises:
      DatasetError: it is damaged.
    """
    try:
        table = json.loads(file_io.read_bytes(path))["table"]
        digest = digest_of(table, lambda file: read_ids(path.parent / file), without)
        return digest, tuple(name for name in learned_features(table) if name not in without)
    except FileNotFoundError:
        return "", ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetError(f"{path}: must describe a dataset's transforms: {error!r}") from None


def read_ids(path: Path) -> npt.NDArray[np.int64]:
    """Reads the ids that a `min_count` keeps, ascending; raises DatasetError."""
    import pyarrow as pa

    from embedps.data.arrow_errors import UNREADABLE

    try:
        with file_io.store_of(path).open_arrow(path) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
            batch.validate(full=True)
            found = batch.column(0)
            ids: npt.NDArray[np.int64] = found.to_numpy(zero_copy_only=False)
    except (*UNREADABLE, ValueError, IndexError) as error:  # ValueError: it has no batch
        raise DatasetError(f"{path}: must be an Arrow file of ids: {error}") from None
    if found.type != pa.int64() or found.null_count or (ids[1:] < ids[:-1]).any():
        raise DatasetError(f"{path}: must be an Arrow file of ids, ascending, but has {found.type}")
    return ids


def stored_digest(metadata: Mapping[bytes, bytes] | None) -> str:
    """Gives the digest in a Parquet file's or an Arrow schema's metadata; empty if it has none."""
    return (metadata or {}).get(KEY, b"").decode("ascii", "replace")


def difference(found: str, wanted: str, *, made_of: str) -> str:
    """Says that values are of other transforms, and what to do; empty if they are not.

    Args:
      found: the digest of the values; empty if it is not known.
      wanted: the digest that they must have; empty if it is not known.
      made_of: the dataset whose transforms they must have.
    """
    if not found or not wanted or found == wanted:
        return ""
    return (
        f"its values are of transforms {found}, they must be of {wanted}: a number or an id would "
        "mean something else; make it again with embedps.pipelines.ingest --transforms-of "
        f"{made_of}"
    )


def no_digest(learned: Sequence[str]) -> str:
    """Says, after a file's name, that nobody can tell of which transforms its values are."""
    return (
        f"has no digest of transforms: {', '.join(learned[:3])}{', …' if learned[3:] else ''} must "
        "be made with what the dataset's transforms learned, by embedps.pipelines.ingest "
        "--transforms-of or embedps.Transforms (further files without one are not named)"
    )


def _nodes(table: Mapping[str, Any]) -> dict[str, Any]:
    """Gives what decides each written column, by kind and name."""
    joined = [
        column
        for join in table.get("join", ())
        for column in join["column"]
        if column["as"] != "ignore" and column["name"] != join["key"]
    ]
    columns = {column["name"]: column for column in (*table["column"], *joined)}
    nodes: dict[str, Any] = {}
    for column in columns.values():
        if column["as"] == "label":
            nodes[f"label {column['name']!r}"] = {
                key: column[key] for key in _LABEL_SETTINGS if key in column
            }
        elif column.get("keep"):
            nodes[f"key {column['name']!r}"] = {"type": column["type"]}
    for feature in table["feature"]:
        sources = feature.get("cross") or [feature["from"]]
        nodes[f"feature {feature['name']!r}"] = {
            "of": [_source(columns[name]) for name in sources],
            "transform": feature["transform"],
        }
    return nodes


def _source(column: Mapping[str, Any]) -> str:
    """Names a column and what its values are: numbers and times are the same in any writing."""
    of_ids = column["as"] in ("categorical", "list")
    kind = f"{column['as']} {column['type']}" if of_ids else column["as"]
    return f"{column['name']} ({kind})"


_Ids = Callable[[str], str]
"""Gives the checksum of the ids in a file, by its name."""


def _content(node: Mapping[str, Any], ids: _Ids | None) -> dict[str, Any]:
    """Gives a node with what its steps learned; without it if `ids` is None."""
    if "transform" not in node:
        return dict(node)
    return {**node, "transform": [_step(_as_node(step), ids) for step in node["transform"]]}


def _as_node(step: Any) -> Mapping[str, Any]:
    return {step: True} if isinstance(step, str) else step


def _step(step: Mapping[str, Any], ids: _Ids | None) -> Any:
    ((op, value),) = step.items()
    if isinstance(value, Mapping) and op == "min_count":
        value = value["count"] if ids is None else [value["count"], ids(value["file"])]
    elif isinstance(value, Mapping) and ids is None:
        value = True
    return op if value is True else {op: value}


def _exact(value: Any) -> Any:
    """Writes numbers so that equal ones are equal texts, however JSON wrote them."""
    if isinstance(value, Mapping):
        return {key: _exact(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_EXACT:
        return int(value)
    return value.hex() if isinstance(value, float) else value

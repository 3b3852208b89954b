"""Lines of JSON objects: what their values give, and which lines are set aside."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint
from embedps.pipelines.ingestion.json_lines import JsonLineParser
from embedps.pipelines.ingestion.text_input import open_lines

LABEL = {"name": "y", "as": "label"}
COLUMNS = [
    {"name": "text", "as": "categorical", "type": "string"},
    {"name": "id", "as": "categorical", "type": "integer"},
    {"name": "number", "as": "numeric"},
    {"name": "ids", "as": "list", "type": "integer"},
    {"name": "numbers", "as": "float_list"},
]
VALUES: list[dict[str, Any]] = [
    {"text": "a", "id": 5, "number": 1.5, "ids": [1, 2], "numbers": [1, 2.5]},
    {"text": 7, "id": "5", "number": "1.5", "ids": "1 2", "numbers": "1 2.5"},
    {"text": ["7"], "id": 5.0, "number": 2, "ids": ["1", 2.0], "numbers": ["1", 2.5]},
    {"text": None, "id": [], "number": None, "ids": 7, "numbers": 3},
    {"id": 2**64 - 3, "number": True, "ids": [None, 2**64 - 3], "numbers": []},
    {"text": 1.5},
    {"text": {"a": 1}},
    {"text": ["a", "b"]},
    {"id": 6.5},
    {"id": 2**64},
    {"ids": [[1]]},
    {"number": "one"},
    {"numbers": [None]},
]


def parse(
    *lines: Any, columns: list[dict[str, Any]] = COLUMNS, name: str = "a"
) -> tuple[list[dict[str, Any]], dict[int, str], JsonLineParser]:
    """The rows, why other lines are none, and the parser."""
    data = b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines)
    table = Table.parse({"format": "jsonl", "column": [LABEL, *columns]})
    reader, parser = open_lines(io.BytesIO(data), table, name)
    assert isinstance(parser, JsonLineParser)
    (block,) = reader
    rows, bad = parser.parse(block)
    return rows.to_pylist(), {line.line: line.reason for line in bad}, parser


def test_values_of_each_type_give_what_a_text_gives():
    rows, bad, _ = parse(*({"y": i % 2} | each for i, each in enumerate(VALUES)))
    assert [row["text"] for row in rows] == [fingerprint("a"), *[fingerprint("7")] * 2, -1, -1]
    assert [row["id"] for row in rows] == [5, 5, 5, -1, -3]
    assert [repr(row["number"]) for row in rows] == ["1.5", "1.5", "2.0", "nan", "1.0"]
    assert [row["ids"] for row in rows] == [[1, 2], [1, 2], [1, 2], [7], [-1, -3]]
    assert [row["numbers"] for row in rows] == [*[[1, 2.5]] * 3, [3], []]
    texts = ["texts or whole numbers", "objects", "a list of 2", "whole number", "within 2^53"]
    texts += ["lists of lists", "must be a number", "no missing number"]
    assert [*bad] == [6, 7, 8, 9, 10, 11, 12, 13]
    for reason, text in zip(bad.values(), texts, strict=True):
        assert text in reason


def test_what_a_value_gives_does_not_depend_on_those_beside_it():
    together, bad, _ = parse(*({"y": 1} | each for each in VALUES))
    alone = [parse({"y": 1} | each) for each in VALUES]
    assert [str(row) for row in together] == [str(row) for rows, _, _ in alone for row in rows]
    assert {i + 1: wrong[1] for i, (_, wrong, _) in enumerate(alone) if wrong} == bad


@pytest.mark.parametrize("wanted", [
    (b"[1]", "must be a JSON object, got a list"),
    (b"null", "must be a JSON object, got null"),
    (b"", "must not be empty"),
    (b'{"y": 1', "must be a JSON object: "),
    (b'{"y": NaN}', "must be a JSON object: "),
    (b'{"y": 1, "text": "\xff"}', "must be a JSON object: "),
    (b'{"y": 1, "text": "\\ud800"}', "must be a JSON object: "),
    (b'{"y":' + b"[" * 50_000, "must be a JSON object: "),
    (b'{"text": "a"}', "y must not be missing"),
])  # fmt: skip
def test_a_line_that_is_no_row_is_set_aside_with_its_reason(wanted: tuple[bytes, str]):
    line, reason = wanted
    rows, bad, parser = parse({"y": 1}, line, {"y": 0})
    assert [row["y"] for row in rows] == [1, 0]
    assert bad[2].startswith(reason)
    texts, lines = parser.texts(["y"])[0]
    assert (texts["y"].to_pylist()[0], lines[-1]) == ("1", 3)


def test_a_path_leads_into_objects_and_lists_of_them():
    columns: list[dict[str, Any]] = [
        {"name": "user", "as": "categorical", "type": "integer", "path": "user.id"},
        {"name": "item", "as": "list", "type": "integer", "path": "seen.item"},
        {"name": "secs", "as": "float_list", "path": "seen.secs"},
        {"name": "tags", "as": "list", "type": "integer", "path": ["a.b", "tags"], "flatten": True},
    ]
    seen = [{"item": 1, "secs": 2.5}, {"item": 2, "secs": 1}]
    rows, bad, parser = parse(
        {"y": 1, "user": {"id": 3}, "seen": seen, "a.b": {"tags": [[1, 2], [3]]}, "more": 1},
        {"y": 0, "user": None, "a.b": {"tags": 4}},
        {"y": 0, "user": 3},
        {"y": 0, "seen": {"item": 5}},
        columns=columns,
    )
    assert rows == [
        {"y": 1, "user": 3, "item": [1, 2], "secs": [2.5, 1], "tags": [1, 2, 3]},
        {"y": 0, "user": -1, "item": [], "secs": [], "tags": [4]},
        {"y": 0, "user": -1, "item": [5], "secs": [], "tags": []},
    ]
    assert bad == {3: "user must be in an object with 'id', got a number"}
    assert (parser.undeclared, parser.absent) == (("more",), set())


def test_columns_that_no_object_has_are_known_and_those_of_the_path_are_not_missed():
    rows, _, parser = parse({"y": 1, "id": None}, {"y": 0, "id": 4}, name="text=b/number=2/a")
    assert parser.absent == {"ids", "numbers"}
    assert [(row["text"], row["number"]) for row in rows] == [(fingerprint("b"), 2)] * 2


def test_names_that_are_not_declared_are_bounded():
    _, _, parser = parse({"y": 1} | {f"k{i}": i for i in range(5000)}, {"y": 1, "z": 1})
    assert len(parser.undeclared) == 100


@pytest.mark.parametrize("path", [[], ["k"]])
def test_a_line_cannot_be_nested_so_deeply_that_it_ends_the_job(path: list[str]):
    lists = {"name": "l", "as": "list", "type": "integer", "path": ["l", *path]}
    inner = b'{"k": 7}' if path else b"7"
    deep = b'{"y": 1, "l":' + b"[" * 1000 + inner + b"]" * 1000 + b"}"
    flat, bad, parser = parse({"y": 0, "l": []}, deep, columns=[lists | {"flatten": True}])
    assert [row["l"] for row in flat] == ([[]] if path else [[], [7]])
    assert bad == ({2: "l must not be nested so deeply"} if path else {})
    assert parser.texts(["l"])[0][0]["l"].to_pylist() == ["[]"] + ([] if path else ["…"])
    rows, bad, _ = parse({"y": 0, "l": []}, deep, columns=[lists])
    assert (len(rows), [*bad]) == (1, [2])


def test_lists_of_lists_are_cut_as_declared():
    ids: dict[str, Any] = {"as": "list", "type": "integer", "path": ["l"]}
    columns = [
        {"name": "few", "cut": [-1, 2], **ids},
        {"name": "end", "cut": -2, "flatten": True, **ids},
        {"name": "all", "flatten": True, **ids},
    ]
    lines = [{"y": 1, "l": [[1], [2, 3, 4]]}, {"y": 0, "l": [[5, 6], []]}, {"y": 0, "l": None}]
    rows, bad, _ = parse(*lines, {"y": 1, "l": [7, 8]}, columns=columns)
    assert [[row[name] for name in ("few", "end", "all")] for row in rows] == [
        [[2, 3], [3, 4], [1, 2, 3, 4]],
        [[], [5, 6], [5, 6]],
        [[], [], []],
    ]
    assert bad == {4: "few must have lists of as many levels as cut, got 8 in one"}

"""A raw record of JSON gets the columns that ingestion makes of it, or is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedps.data.columns import Columns
from embedps.features.transforms import Transforms
from embedps.pipelines.ingestion.json_lines import JsonLineParser
from embedps.pipelines.ingestion.line_blocks import LineBlock
from embedps.serving.server import json_reader
from embedps.serving.server.json_reader import JsonRequest
from embedps.serving.server.made_columns import MadeColumns, of_raw
from embedps.serving.server.request_error import RequestError
from embedps.serving.server.request_size import Room
from embedps.serving.server.requests import Request, RequestFormat
from tests.pipelines.shop import load

SCHEMA = """
format = "jsonl"
missing = ["", "NA"]
column = [{ name = "label", as = "label" }, { name = "x", as = %s }]
[[feature]]
%s
"""
PLAIN = 'name = "made"\nfrom = "x"'
OF_TIMES = """
name = "hour"
from = "x"
transform = ["hour"]
[[feature]]
name = "age"
from = "x"
transform = [{ age = 2026-01-01 }]
"""
OF_LISTS = 'name = "other"\nfrom = "z"'
KINDS = {
    "id": ('"categorical", type = "integer"', PLAIN, Columns(ids=("made",))),
    "hexadecimal": ('"categorical", type = "hex"', PLAIN, Columns(ids=("made",))),
    "text": ('"categorical", type = "string"', PLAIN, Columns(ids=("made",))),
    "number": ('"numeric"', PLAIN, Columns(numerics=("made",))),
    "clipped": (
        '"numeric", transform = ["log1p", { clip = [0.5, 4] }]',
        PLAIN + "\ntransform = [{ bucketize = [0, 7] }]",
        Columns(numerics=("x",), ids=("made",)),
    ),
    "whole": ('"numeric", type = "integer"', PLAIN, Columns(numerics=("made",))),
    "ids": ('"list", type = "integer"', PLAIN, Columns(id_lists=("made",))),
    "hexadecimals": ('"list", type = "hex"', PLAIN, Columns(id_lists=("made",))),
    "texts": ('"list", type = "string"', PLAIN, Columns(id_lists=("made",))),
    "numbers": (
        '"float_list" }, { name = "z", as = "numeric"',
        OF_LISTS,
        Columns(float_lists=("x",)),
    ),
    "seconds": (
        '"timestamp", type = "seconds"',
        OF_TIMES,
        Columns(numerics=("age",), ids=("hour",)),
    ),
    "milliseconds": (
        '"timestamp", type = "milliseconds"',
        OF_TIMES,
        Columns(numerics=("age",), ids=("hour",)),
    ),
    "time": ('"timestamp", format = "iso"', OF_TIMES, Columns(numerics=("age",), ids=("hour",))),
}
LIMIT = (2**63 - 1) // 1000  # of seconds and of milliseconds
WHOLE = [
    *(0, 4, -4, -1, -2, 2**53 + 1, LIMIT, LIMIT + 1, -LIMIT, -LIMIT - 1, 10**17, 2**63 - 1, 2**63),
    *(-(2**63), -(2**63) - 1, 2**64 - 3, 2**64 - 2, 2**64 - 1, 2**64, 10**22),
]
VALUES = [
    *map(str, WHOLE),
    *(f'"{each}"' for each in WHOLE),
    *("-0", "-0.0", "7.0", "7.5", "1e3", "1e15", "1e19", "1e38", "1e39", "-1e39", "1e308", "1e400"),
    *("-1e400", "3.4028235677973366e38", "3.4028235677973362e38", "5e-324", "1e-46", "0.1"),
    *("16777217", "33554433.5", "1714564800.5", '"1714564800.5"', "-3600.001", "true"),
    *("false", "null", "{}"),
    *('"7.0"', '" 4"', '"4 "', '"+4"', '"007"', '"1e3"', '"0x1f"', '"ff"', '"FF"', '"NA"', '""'),
    *('" "', '"nan"', '"inf"', f'"{"f" * 16}"', f'"{"f" * 15}e"', f'"{"f" * 15}d"'),
    *('"é"', '"e\\u0301"', '"\\ud800"', '"a\\u0000b"', '"a b"', '"1|2"', '"[1, 2]"', '{"a": 1}'),
    *('"2024-05-01T12:00:00.5Z"', '"2024-05-01"', '"1969-12-31T23:00:00+05:30"', '"0001-01-01"'),
    *('"9999-12-31T23:59:59.999999"', '"1969-12-31T23:59:59.9999"', '"2024-02-30"'),
    *("[]", "[4]", "[4, 5]", "[7.0]", '["4"]', "[null]", '["NA"]', '[""]', '["NA", "b"]', "[true]"),
    *('[4, "4"]', "[4, 7.0]", '["b", null]', "[[4]]", "[1.5, -0.0]", "[1e39]", "[-1, -2]"),
    *(f"[{2**64 - 1}]", f'["{2**63}", "ff"]', f'["{"f" * 16}"]', '["é", " a "]', '["2024-05-01"]'),
]  # fmt: skip
SERVED = {
    "id": ("4", '"4"', '"007"', "-1", "null", str(2**63), f'"{2**64 - 3}"', str(2**53 + 1)),
    "hexadecimal": ('"ff"', '"FF"', '"007"', "null", '"NA"', f'"{"f" * 15}d"'),
    "text": ('"4"', '"NA"', '"é"', '"e\\u0301"', '" 4"', '"a\\u0000b"', "null"),
    "number": ("4", "7.5", "-0.0", "1e38", "null", "3.4028235677973362e38", str(10**22)),
    "clipped": ("4", "7.5", "-0.0", "1e38", "null"),
    "whole": ("4", "7.5", "null"),
    "ids": ("[]", "[4, 5]", '["4"]', "[null]", '[4, "4"]', "[-1, -2]"),
    "hexadecimals": ("[]", '["4"]', "[null]", '["b", null]'),
    "texts": ("[]", '["4"]', "[null]", '["NA", "b"]', '["é", " a "]', '[""]'),
    "numbers": ("[]", "[4, 5]", "[4, 7.0]", "[1.5, -0.0]"),
    "seconds": ("0", "4", "-4", '"4"', str(LIMIT), str(-LIMIT), "16777217"),
    "milliseconds": ("0", "4", "-4", '"4"', str(LIMIT), str(-LIMIT)),
    "time": ('"2024-05-01"', '"1969-12-31T23:00:00+05:30"', '"0001-01-01"'),
}
"""What must be served."""
MORE = {
    ("hexadecimals", '["NA"]'),  # in a tensor of texts, one of these means a missing id
    ("hexadecimals", '["NA", "b"]'),
    ("hexadecimals", '[""]'),
    # Ingestion takes floats and whole numbers of a signed 64 bits, and these are neither.
    *(("whole", str(each)) for each in (2**63, 2**64 - 3, 2**64 - 2, 2**64 - 1)),
}
"""What is served though ingestion refuses it: as it would be read, if it were."""


def bits(value: Any) -> Any:
    return np.float32(value).tobytes() if isinstance(value, float) else value


def ingested(transforms: Transforms, columns: Columns, value: str) -> dict[str, Any] | None:
    """Gives a record's columns; None if it is a bad line."""
    line = f'{{"label": 1, "z": 0, "x": {value}}}\n'.encode()
    block = LineBlock(first_line=1, num_lines=1, data=line)
    rows, bad = JsonLineParser(transforms.table).parse(block)
    if bad:
        return None
    made = transforms.apply_rows(rows)
    found = {name: made[name].to_pylist()[0] for name in columns.names}
    return {n: [*map(bits, v)] if isinstance(v, list) else bits(v) for n, v in found.items()}


def read(raw: MadeColumns, value: str, *, small: int, by_row: bool) -> Request:
    """Reads a record as a server does: by Python up to a size, by C++ above it."""
    is_list = bool(raw.lists) and not by_row
    if by_row:
        body = f'{{"instances": [{{"x": {value}}}]}}'
    else:
        lengths = f', "x_lengths": [{len(json.loads(value))}]' if is_list else ""
        body = f'{{"inputs": {{"x": {value if is_list else f"[{value}]"}{lengths}}}}}'
    with pytest.MonkeyPatch.context() as patch, Room().place() as place:
        patch.setattr(json_reader, "SMALL_BYTES", small)
        return JsonRequest(body.encode()).read(raw, place)


def served(raw: MadeColumns, form: RequestFormat, value: str, **how: Any) -> dict[str, Any] | None:
    """Gives a record's columns; None if it is refused, in one line."""
    try:
        request = read(raw, value, **how)
    except RequestError as error:
        return None if "\n" not in str(error) else {}
    assert request.rows == 1
    found = {n: bits(float(v[0])) for n, v in zip(form.floats, request.floats, strict=True)}
    found |= {n: int(v[0]) for n, v in zip(form.integers, request.integers, strict=True)}
    lists = zip(form.lists, request.lists, strict=True)
    return found | {n: [*map(bits, values.tolist())] for n, (values, _) in lists}


@pytest.mark.parametrize("kind", KINDS)
def test_a_raw_record_gets_the_columns_of_ingestion_or_is_refused(
    tmp_path: Path, kind: str
) -> None:
    declared, feature, columns = KINDS[kind]
    transforms = Transforms(table=load(tmp_path, SCHEMA % (declared, feature)))
    form = RequestFormat(columns, missing_id=-1)
    raw = of_raw(form, columns, transforms, missing_id=-1)
    for value in VALUES:
        wanted = ingested(transforms, columns, value)
        ways = [(small, True) for small in (-1, 1 << 20)]
        if not raw.lists or value.startswith("["):
            ways += [(small, False) for small in (-1, 1 << 20)]
        found = [served(raw, form, value, small=small, by_row=by_row) for small, by_row in ways]
        assert found == [found[0]] * len(found), value
        if value in SERVED[kind]:
            assert found[0] == wanted is not None, value
        elif (kind, value) in MORE:
            assert wanted is None is not found[0], value
        else:
            assert found[0] in (wanted, None), value
    assert {*SERVED[kind]} <= {*VALUES}

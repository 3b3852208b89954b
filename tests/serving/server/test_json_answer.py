"""Answers are written as Python's `json` writes them, by whichever writer."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from embedps.serving.server import json_answer
from embedps.serving.server.batcher import Answer
from embedps.serving.server.json_answer import answer_json

FLOATS = [
    0.0, -0.0, 1.0, 0.1, 1e-4, 9.999e-5, 1e15, 9007199254740993.0, 9999999999999998.0, 1e16, 1e22,
    5e-324, 1.7976931348623157e308, -1.5e-7, float("inf"), float("-inf"), float("nan"), 123456.789,
]  # fmt: skip


def texts(*each: bytes) -> Any:
    return np.array(each, object)


def plain(outputs: dict[str, Any], *, by_row: bool) -> str:
    """Gives the body by a formula of its own."""
    lists = {
        name: json.loads(json.dumps(array.tolist(), default=lambda b: b.decode(errors="replace")))
        for name, array in outputs.items()
    }
    if len(lists) == 1:
        return json.dumps({"predictions" if by_row else "outputs": next(iter(lists.values()))})
    if not by_row:
        return json.dumps({"outputs": lists})
    rows = range(len(next(iter(lists.values()))))
    return json.dumps({"predictions": [{n: v[i] for n, v in lists.items()} for i in rows]})


RNG = np.random.default_rng(0)
BITS = RNG.integers(0, 1 << 63, 5000).view(np.float64)
OUTPUTS = {
    "floats": {"score": np.array(FLOATS)},
    "bits": {"score": BITS, "near": RNG.random(5000) * 10.0 ** RNG.integers(-8, 20, 5000)},
    "float32": {"score": RNG.random(5000, np.float32), "wide": RNG.random([5000, 3], np.float32)},
    "items": {
        "ids": texts(b"a", b'"\\\n', "é😀".encode(), b"\xff\xed\xa0\x80", b"", b"[,]").reshape(
            3, 2
        ),
        "scores": np.array([[1, 2], [3, 4], [5, 6]], np.float32),
        'un"known': np.array([True, False, True]),
        "n": np.array([-(1 << 63), 0, (1 << 63) - 1]),
    },
    "none": {"score": np.zeros(0, np.float32), "wide": np.zeros([0, 2], np.float32)},
    "narrow": {"wide": np.zeros([3, 0], np.float32)},
    "others": {"small": np.arange(3, dtype=np.int32), "deep": np.zeros([3, 2, 2], np.float32)},
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("part", [5, 1 << 16])
def test_answers_are_pythons(
    name: str, by_row: bool, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = plain(OUTPUTS[name], by_row=by_row)
    answer = Answer(number=1, outputs=OUTPUTS[name])
    assert answer_json(answer, by_row=by_row).decode() == wanted
    monkeypatch.setattr(json_answer, "_SMALL", -1)
    monkeypatch.setattr(json_answer, "_PART", part)
    monkeypatch.setattr(json_answer, "_TEXTS", 2)
    assert answer_json(answer, by_row=by_row).decode() == wanted

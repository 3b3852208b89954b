"""The files by which `embedps scale` asks a run for other numbers of tasks, and its answer.

The command writes MODEL_DIR/_scale.json. The run takes that away and answers in _scaled.json.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import NamedTuple

from embedps.errors import UsageError
from embedps.run.summary import read_json, write_json

ASKED, ANSWERED = "_scale.json", "_scaled.json"
_TICK_SECS = 0.2


class ScaleRequest(NamedTuple):
    """What was asked: how many parameter servers and workers; None leaves them as they are."""

    token: str
    servers: int | None
    workers: int | None


def ask(model_dir: Path, *, servers: int | None, workers: int | None, wait_secs: float) -> str:
    """Asks the run of a model directory for numbers of tasks; returns what it answers.

    Raises:
      UsageError: it refuses, or does not take the request in time.
    """
    token = secrets.token_hex(8)
    write_json(model_dir / ASKED, ScaleRequest(token, servers, workers)._asdict())
    deadline = time.monotonic() + wait_secs
    while (answer := read_json(model_dir / ANSWERED)).get("token") != token:
        if time.monotonic() > deadline:
            if read_json(model_dir / ASKED).get("token") != token:
                return "the run took the request: its output says when it is done"
            (model_dir / ASKED).unlink(missing_ok=True)
            raise UsageError(
                f"the run of {model_dir} did not take the request within {wait_secs:.0f} s: is "
                "it training?"
            )
        time.sleep(_TICK_SECS)
    if answer.get("refused"):
        raise UsageError(str(answer["refused"]))
    return str(answer.get("said", ""))


def take(model_dir: Path) -> ScaleRequest | None:
    """Takes a request; None if there is none."""
    asked = read_json(model_dir / ASKED)
    token, *counts = (asked.get(name) for name in ScaleRequest._fields)
    if not isinstance(token, str) or not all(c is None or type(c) is int for c in counts):
        return None
    (model_dir / ASKED).unlink(missing_ok=True)
    return ScaleRequest(token, *counts)


def answer(model_dir: Path, token: str, *, said: str = "", refused: str = "") -> None:
    """Answers a request that was taken."""
    write_json(model_dir / ANSWERED, {"token": token, "said": said, "refused": refused})

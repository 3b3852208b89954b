"""The files by which `embedps scale` asks a run for another number of workers, and its answer.

The command writes MODEL_DIR/_scale.json. The run takes that away and answers in _scaled.json.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from embedps.errors import UsageError
from embedps.run.summary import read_json, write_json

ASKED, ANSWERED = "_scale.json", "_scaled.json"
_TICK_SECS = 0.2


def ask(model_dir: Path, workers: int, *, wait_secs: float) -> str:
    """Asks the run of a model directory for a number of workers; returns what it answers.

    Raises:
      UsageError: it refuses, or does not answer in time.
    """
    token = secrets.token_hex(8)
    write_json(model_dir / ASKED, {"token": token, "workers": workers})
    deadline = time.monotonic() + wait_secs
    while (answer := read_json(model_dir / ANSWERED)).get("token") != token:
        if time.monotonic() > deadline:
            (model_dir / ASKED).unlink(missing_ok=True)
            raise UsageError(
                f"the run of {model_dir} did not answer within {wait_secs:.0f} s: is it training, "
                "on a local cluster (--num-ps)?"
            )
        time.sleep(_TICK_SECS)
    if answer.get("refused"):
        raise UsageError(str(answer["refused"]))
    return str(answer.get("said", ""))


def take(model_dir: Path) -> tuple[str, int] | None:
    """Takes a request: its token and the number of workers; None if there is none."""
    asked = read_json(model_dir / ASKED)
    token, workers = asked.get("token"), asked.get("workers")
    if not isinstance(token, str) or not isinstance(workers, int):
        return None
    (model_dir / ASKED).unlink(missing_ok=True)
    return token, workers


def answer(model_dir: Path, token: str, *, said: str = "", refused: str = "") -> None:
    """Answers a request that was taken."""
    write_json(model_dir / ANSWERED, {"token": token, "said": said, "refused": refused})

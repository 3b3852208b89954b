"""What a search of `embedps tune` depends on, and what it has tried: MODEL_DIR/tuning.json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from embedps.errors import EmbedpsError, UsageError
from embedps.run.summary import read_json, write_json

FILE_NAME = "tuning.json"
_DEATHS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What a search depends on besides its candidates.

    Attributes:
      model_dir: where tuning.json is.
      base: options of all runs.
      folds: how many inner shares are held out in turn.
      share: of the rows, each of them.
      metric: the score of the inner rows to go by.
      secs: the time for all runs, with that of the final one.
      identity: what must be the same when the search goes on.
    """

    model_dir: Path
    base: Mapping[str, Any]
    folds: int
    share: float
    metric: str
    secs: float
    identity: Mapping[str, Any]


@dataclasses.dataclass(kw_only=True)
class Tried:
    """What is known of a candidate.

    Attributes:
      scores: of the inner shares, in their order; of one if its epochs were not set yet.
      epochs: that suit it, by its scores.
      secs: of its runs.
      problem: why it is left out; empty if it is not.
      deaths: how often the process ended while it trained.
    """

    scores: list[float] = dataclasses.field(default_factory=list)
    epochs: int = 0
    secs: float = 0.0
    problem: str = ""
    deaths: int = 0

    @property
    def mean(self) -> float:
        """The mean score."""
        return mean(self.scores)


class EndedByUserError(EmbedpsError):
    """A signal ended the search."""

    exit_code = 130


class Record:
    """MODEL_DIR/tuning.json: what was tried, committed after each run."""

    def __init__(self, settings: Settings) -> None:
        """Reads what earlier processes left.

        Raises:
          UsageError: the file is of another search, or damaged.
        """
        self.path = settings.model_dir / FILE_NAME
        self._identity = json.loads(json.dumps(settings.identity))
        self.tried: dict[str, Tried] = {}
        self.chosen: dict[str, Any] = {}
        if not self.path.exists():
            return
        found = read_json(self.path)
        for name, value in self._identity.items():
            if name not in found:
                raise UsageError(f"{self.path} is not what embedps tune writes: remove it")
            if found[name] != value:
                raise UsageError(
                    f"{self.path}: {name} is {value} now but was {found[name]} when the search "
                    "began: give the same, or another --model-dir"
                )
        try:
            self.tried = {key: Tried(**each) for key, each in found["tried"].items()}
            self.chosen = dict(found["chosen"])
            running = str(found["running"])
        except (AttributeError, KeyError, TypeError) as error:
            raise UsageError(f"{self.path} is damaged ({error!r}): remove it") from error
        if running:
            died = self.of(running)
            died.deaths += 1
            if died.deaths >= _DEATHS:
                died.problem = f"the process ended {died.deaths} times while it trained"
            self.save()

    @property
    def secs(self) -> float:
        """The time of all runs."""
        return sum(each.secs for each in self.tried.values())

    def of(self, key: str) -> Tried:
        """Gives what is known of a candidate."""
        return self.tried.setdefault(key, Tried())

    def save(self, running: str = "") -> None:
        """Commits the file; `running` is the candidate that begins to train now."""
        tried = {key: dataclasses.asdict(each) for key, each in self.tried.items()}
        content = {"running": running, "chosen": self.chosen, "tried": tried}
        write_json(self.path, {**self._identity, **content})

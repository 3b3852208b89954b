"""The search of `embedps tune`: candidates are scored on inner rows, the best is trained on all.

The order of what is tried follows from the scores so far, so a search that goes on after a kill
does what it would have done. MODEL_DIR/tuning.json has each run once it is done.

1. A candidate trains for the preset's epochs, one inner share held out, and stops once it
   overfits, as the preset does. If its end is as good as its best epoch, all epochs suit it: the
   rates fall to 0 there. Else the best epoch tells how many do.
2. With that number of epochs, it is scored on the other inner shares in turn, for as long as it is
   better than the best so far on the same shares.
3. The plain logistic regressions come first, and are scored on all shares whatever comes, if that
   is not much of the time: on one share of few rows, models are told apart by chance. Then each of
   the first candidates is scored on the first share. The best of these go on to the others.
4. After the first candidates come neighbors of the best, which differ in one way. In turn with them
   come those of the best of another model, if it is close on the first share: there models are told
   apart by chance. This goes on from the new best, until none is better.

The best is the simplest model whose scores cannot be told from the best mean: see `pick`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from statistics import mean, stdev

import tensorflow as tf

from embedps.config_fields import MAX_COUNT
from embedps.console.lines import say
from embedps.data.dataset import Dataset
from embedps.engine.unit_functions import explain
from embedps.errors import CheckpointError, DatasetError, TrainingError, UsageError
from embedps.run.candidates import MODELS, Candidate, neighbors, of_model
from embedps.run.evaluation_config import INNER
from embedps.run.presets import PRESETS
from embedps.run.run_config import RunConfig
from embedps.scheduling.division import LedgerOptions
from embedps.score_names import is_worse, merit, no_score
from embedps.training.callbacks import Callback, RunControl
from embedps.training.fit_result import Scores
from embedps.training.mixed_rows import are_single, write_mixed
from embedps.training.run_events import UnitEnd
from embedps.training.trainer import Trainer
from embedps.training.tuning_record import EndedByUserError, Record, Settings, Tried

clock = time.monotonic
"""Gives the seconds that --minutes are of."""
_RUN_DIR, _ROWS_DIR = "tuning", "tuning-rows"
_MOST_OF_TIME = 0.15
"""Of all minutes, that a run may take before it is stopped at its last score."""
_CLOSE = 0.02
"""Of a score, by which another model may be behind and have its neighbors tried."""
_NUM_PLAIN, _BY_CHANCE = 3, 0.1
"""How many logistic regressions without crosses are scored on all shares, whatever comes, unless
they are behind the best of them by more than this of its score on the first."""
_PLAIN_SHARE, _BREADTH_SHARE, _FIRST_SHARE = 0.3, 0.5, 0.7
"""Of the time, after which only the best of the plain regressions goes on whatever comes; after
which no more of the first candidates begin; and after which only the best of them goes on."""
_LEAST_MODELS = 8
"""How many of the first candidates begin beside the plain regressions, whatever these took."""
_FAR = 2.0
_AS_GOOD = 0.01
"""Share of its best score by which a run's end may be worse, and still all its epochs suit it."""
_WATCH = {name: PRESETS["small"][name] for name in ("stop_patience", "tolerance")}
_AT_END = {"eval_epochs": MAX_COUNT}
"""Scores and checkpoints of each epoch would take half the time of a run of few rows."""
_NOT_SHOWN = ("data", "model_dir", "log_secs")


class Search:
    """Tries candidates until the time is over or nothing better is near."""

    def __init__(self, settings: Settings, dataset: Dataset, first: Sequence[Candidate]) -> None:
        self._settings, self._dataset, self._first = settings, dataset, first
        self._rows = dataset
        plain = [c for c in first if c.model == MODELS[0] and not c.options.get("cross")]
        self._plain = plain[:_NUM_PLAIN]
        self._record = Record(settings)
        self._raced: list[Candidate] = []
        self.is_complete = False

    @property
    def record(self) -> Record:
        """What was tried."""
        return self._record

    def run(self) -> None:
        """Tries candidates.

        Raises:
          EndedByUserError: a signal came.
          DatasetError: a file cannot be read.
          CheckpointError: the model directory cannot be written.
          UsageError: there is no such score, or no candidate can be trained.
        """
        with self._mixed():
            for candidate, fold in self._order():
                if not self._has_time(candidate):
                    return
                self._try(candidate, fold)
        self.is_complete = True

    @contextlib.contextmanager
    def _mixed(self) -> Iterator[None]:
        """Has candidates train on rows whose inner shares are like the eval split."""
        directory, base = self._settings.model_dir / _ROWS_DIR, self._settings.base
        if not are_single(self._dataset):
            yield
            return
        options = LedgerOptions(
            batch_rows=base["batch_size"], unit_rows=base["unit_rows"], seed=base["seed"]
        )
        try:
            self._rows = write_mixed(self._dataset, directory, options)
            yield
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    @property
    def chosen(self) -> Candidate:
        """The candidate to train on all rows, once `choose` has chosen it."""
        return Candidate.of_key(self._record.chosen["key"])

    def choose(self) -> None:
        """Chooses the candidate to train on all rows: of those with most scores, the best.

        The time may have ended before one that is far better had as many.

        Raises:
          UsageError: no candidate has a score.
        """
        every = self._record.tried.items()
        there = [(Candidate.of_key(k), t) for k, t in every if t.scores and not t.problem]
        if not there:
            why = next((t.problem for _, t in every if t.problem), "")
            raise UsageError(
                f"no candidate has a score{': ' if why else ''}{why}: give more --minutes"
            )
        most = max(len(t.scores) for _, t in there)
        whole = [(c, t) for c, t in there if len(t.scores) == most]
        candidate, tried = pick(whole, self._settings.metric, most)
        candidate, tried = far_ahead((candidate, tried), there, self._settings.metric)
        if "epochs" not in candidate.options:
            candidate = with_epochs(candidate, tried.epochs)
        first = next((self._known(c) for c in self._first if not c.options), None)
        self._record.chosen = {
            "key": candidate.key,
            "score": tried.mean,
            "shares": len(tried.scores),
            "on_first_share": [t.scores[0] for t in (tried, first) if t and t.scores],
            "is_complete": self.is_complete,
        }
        self._record.save()

    def reason(self) -> str:
        """Says in one line what was chosen, and why."""
        found, record, metric = self._record.chosen, self._record, self._settings.metric
        end = "nothing nearby is better" if found["is_complete"] else "the time was over"
        runs = sum(len(each.scores) for each in record.tried.values())
        mine, *preset = (f"{score:.5f}" for score in found["on_first_share"])
        against = f" ({mine} on the first, {preset[0]} with --preset small alone)" if preset else ""
        return (
            f"chosen for the best {metric}, {found['score']:.5f} on {found['shares']} of "
            f"{self._settings.folds} inner shares{against}, of {len(record.tried)} candidates in "
            f"{runs} runs of {record.secs / 60:.1f} minutes; {end}: {self.chosen.flags()}; now it "
            "is trained on all rows"
        )

    def command(self, candidate: Candidate) -> str:
        """Gives all options of a candidate as flags."""
        kept = {k: v for k, v in self._settings.base.items() if k not in _NOT_SHOWN}
        options = {**kept, **of_model(candidate.model), **candidate.options}
        return candidate.with_known(options).flags()

    def _merit(self, score: float) -> float:
        return merit(self._settings.metric, score)

    def _order(self) -> Iterator[tuple[Candidate, int]]:
        """Gives what is to be tried next: a candidate, and the inner share that is held out."""
        tried: list[Candidate] = []
        self._raced.clear()
        yield from self._try_first(tried)
        center = self._best_of(tried)
        while center is not None:
            others = [center]
            of_each = [
                neighbors(each, self._settings.base, self._dataset)
                for each in (center, *self._rival(center))
            ]
            for in_turn in itertools.zip_longest(*of_each):
                for candidate in filter(None, in_turn):
                    yield from self._race(candidate, others)
            best = self._best_of(others)
            center = None if best is None or best.key == center.key else best

    def _try_first(self, tried: list[Candidate]) -> Iterator[tuple[Candidate, int]]:
        """Scores the first candidates; those with scores of all shares are among `tried` then."""
        for candidate in self._plain:
            yield from self._missing(candidate, 1)
        plain = self._by_first_share(self._plain)
        for place, candidate in enumerate(plain):
            may = self._is_before(_PLAIN_SHARE) and self._lag(candidate, plain[0]) <= _BY_CHANCE
            must = place == 0 or self._goes_on(candidate) or may
            yield from self._race(candidate, tried, must=must)
        others = [c for c in self._first if c not in self._plain]
        for place, candidate in enumerate(others):
            if place < _LEAST_MODELS or self._known(candidate) or self._is_before(_BREADTH_SHARE):
                yield from self._missing(candidate, 1)
        for place, candidate in enumerate(self._by_first_share(others)):
            if place == 0 or self._goes_on(candidate) or self._is_before(_FIRST_SHARE):
                yield from self._race(candidate, tried)

    def _by_first_share(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Gives those that have a score of the first share, the best first."""
        scored = [c for c in candidates if self._has_scores(c, 1)]
        return sorted(scored, key=lambda c: -self._merit(self._record.of(c.key).scores[0]))

    def _lag(self, candidate: Candidate, other: Candidate) -> float:
        """Tells by how much of its score one is behind another on the first share."""
        mine, its = (self._merit(self._record.of(c.key).scores[0]) for c in (candidate, other))
        return (its - mine) / abs(its) if its else its - mine

    def _has_scores(self, candidate: Candidate, scores: int) -> bool:
        known = self._known(candidate)
        return known is not None and not known.problem and len(known.scores) >= scores

    def _goes_on(self, candidate: Candidate) -> bool:
        """Whether more than a candidate's first score is known."""
        settled = self._settled(candidate)
        return self._has_scores(settled, 2 if settled.key == candidate.key else 1)

    def _is_before(self, share: float) -> bool:
        """Whether less than this share of the time is over."""
        return self._record.secs < share * self._settings.secs

    def _rival(self, center: Candidate) -> list[Candidate]:
        """Gives the best candidate of another model on the first share, if it is close."""
        others = [c for c in self._raced if c.model != center.model]
        rival = next(iter(self._by_first_share(others)), None)
        if rival is None or self._lag(rival, center) > _CLOSE:
            return []
        return [self._settled(rival)]

    def _race(
        self, candidate: Candidate, tried: list[Candidate], *, must: bool = False
    ) -> Iterator[tuple[Candidate, int]]:
        """Scores a candidate for as long as it is better than the best of those tried so far.

        One with scores of all shares is then one of them. One that must be scored on all is.
        """
        best = None if must else self._best_of(tried)
        self._raced.append(candidate)
        yield from self._missing(candidate, 1)
        if not self._may_be_better(candidate, best):
            return
        candidate = self._settled(candidate)
        self._raced.append(candidate)
        for fold in range(self._settings.folds):
            yield from self._missing(candidate, fold + 1)
            if not self._may_be_better(candidate, best):
                return
        tried.append(candidate)

    def _settled(self, candidate: Candidate) -> Candidate:
        """Gives a candidate the epochs that suit it, if these are fewer than the base's."""
        known, run = self._known(candidate), candidate.run(self._settings.base)
        if known is None or "epochs" in candidate.options or known.epochs == run.config.epochs:
            return candidate
        return with_epochs(candidate, known.epochs)

    def _may_be_better(self, candidate: Candidate, best: Candidate | None) -> bool:
        """Whether a candidate is better than another on the shares that it was scored on."""
        mine, other = self._known(candidate), self._known(best) if best else None
        if mine is None or mine.problem or not mine.scores:
            return False
        if other is None:
            return True
        return self._merit(mine.mean) > self._merit(mean(other.scores[: len(mine.scores)]))

    def _best_of(self, candidates: Sequence[Candidate]) -> Candidate | None:
        whole = [(c, t) for c in candidates if (t := self._known(c)) and not t.problem]
        whole = [(c, t) for c, t in whole if len(t.scores) == self._settings.folds]
        return pick(whole, self._settings.metric, self._settings.folds)[0] if whole else None

    def _known(self, candidate: Candidate) -> Tried | None:
        return self._record.tried.get(candidate.key)

    def _missing(self, candidate: Candidate, scores: int) -> Iterator[tuple[Candidate, int]]:
        tried = self._known(candidate)
        have = len(tried.scores) if tried else 0
        if have < scores and not (tried and tried.problem):
            yield candidate, have

    def _has_time(self, candidate: Candidate) -> bool:
        """Whether the time suffices for one more run and for the final one after it."""
        record, known = self._record, self._known(candidate)
        runs = sum(max(1, len(t.scores)) for t in record.tried.values())
        usual = record.secs / runs if runs else 0.0
        of_it = known.secs / len(known.scores) if known and known.scores else usual
        return record.secs + of_it + self._final_secs() < self._settings.secs

    def _final_secs(self) -> float:
        scored = [t for t in self._record.tried.values() if t.scores and not t.problem]
        return max((t.secs / len(t.scores) for t in scored), default=0.0)

    def _try(self, candidate: Candidate, fold: int) -> None:
        record, settings = self._record, self._settings
        tried = record.of(candidate.key)
        record.save(running=candidate.key)
        began = clock()
        limit = settings.secs * _MOST_OF_TIME if record.secs else settings.secs / 2
        try:
            score, epochs = self._score(candidate, fold, limit)
            if score is None or not math.isfinite(score):
                tried.problem = f"no {settings.metric} of the inner rows within {limit:.0f} s"
            else:
                tried.scores.append(score)
                tried.epochs = tried.epochs or epochs
        except (
            DatasetError,
            CheckpointError,
            EndedByUserError,
            KeyboardInterrupt,
            UsageError,
        ):
            tried.secs += clock() - began
            record.save()
            raise
        except (TrainingError, tf.errors.OpError, MemoryError) as error:
            cause = explain(error) if isinstance(error, tf.errors.OpError) else error
            tried.problem = " ".join(str(cause).split())[:200] or type(cause).__name__
        tried.secs += clock() - began
        record.save()
        say(self._line(candidate, tried))

    def _line(self, candidate: Candidate, tried: Tried) -> str:
        name, secs = self._settings.metric, f"{tried.secs:.1f} s"
        if tried.problem:
            return f"left out after {secs}: {tried.problem}: {candidate.flags()}"
        shares = f"{len(tried.scores)} of {self._settings.folds} inner shares"
        best = "" if "epochs" in candidate.options else f", suits {tried.epochs} epochs"
        return f"{name} {tried.mean:.5f} on {shares}, {secs}{best}: {candidate.flags()}"

    def _score(self, candidate: Candidate, fold: int, limit: float) -> tuple[float | None, int]:
        """Trains a candidate and scores it on an inner share.

        Returns:
          The score, and the epochs that suit it.
        """
        # Epochs are chosen on the first share.
        settings, is_settled = self._settings, fold > 0 or "epochs" in candidate.options
        directory = settings.model_dir / _RUN_DIR
        shutil.rmtree(directory, ignore_errors=True)
        share = {"inner_share": settings.share, "inner_fold": fold}
        watch = _AT_END if is_settled else {**_WATCH, "metric": settings.metric}
        base = {**settings.base, **share, **watch, "eval": "none", "model_dir": str(directory)}
        run = candidate.run({**base, "data": str(self._rows.directory)})
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                trainer = Trainer(
                    run.recommender(self._rows),
                    self._rows,
                    run.config,
                    callbacks=[_StopAt(clock() + limit)],
                )
                result = trainer.fit()
            if trainer.told_to_end:
                raise EndedByUserError("interrupted: run the same command again to go on")
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return self._read(result.scores, run, is_whole=result.units.done == result.units.total)

    def _read(self, scores: Scores, run: RunConfig, *, is_whole: bool) -> tuple[float | None, int]:
        metric = self._settings.metric
        if not scores:
            return None, 0
        if metric not in scores[-1].values:
            known = [name for name in scores[-1].values if name.startswith(INNER)]
            raise no_score(metric, known)
        best = scores.best(metric)
        if best is None:
            return None, 0
        every, at, end = run.config.epochs, scores.index(best) + 1, scores[-1].get(metric)
        is_settled = not run.config.evaluation.stop_patience
        if is_whole and (is_settled or not is_worse(metric, end, best.get(metric), _AS_GOOD)):
            return end, every
        # A rate that falls to 0 over `few` epochs sums up to what it does by then over all.
        return best.get(metric), max(1, round(2 * at - at * at / every))


class _StopAt(Callback):
    """Stops a run once its time is over."""

    def __init__(self, when: float) -> None:
        self._when = when

    def on_unit_end(self, run: RunControl, event: UnitEnd) -> None:
        """Stops it if the time is over."""
        if clock() > self._when:
            run.stop("its time is over")


def pick(
    tried: Sequence[tuple[Candidate, Tried]], metric: str, shares: int
) -> tuple[Candidate, Tried]:
    """Picks a candidate: the best of the simplest model that is not told from the best mean.

    That is the rule of one standard error (Breiman et al. 1984): the best of many candidates is in
    part the luckiest, and a simpler model loses less by that. A candidate is told from the best if
    the mean of what it lacks, share by share, is more than a standard error.

    Args:
      tried: candidates, each with scores of all these shares; at least one.
      metric: of the scores.
      shares: how many of the scores count, from the first.
    """
    merits = [[merit(metric, score) for score in t.scores[:shares]] for _, t in tried]
    top = max(merits, key=mean)

    def is_as_good(mine: Sequence[float]) -> bool:
        lacks = [best - score for best, score in zip(top, mine, strict=True)]
        return mean(lacks) <= (stdev(lacks) / math.sqrt(shares) if shares > 1 else 0.0)

    good = [
        (pair, mean(mine)) for pair, mine in zip(tried, merits, strict=True) if is_as_good(mine)
    ]
    return min(good, key=lambda each: (MODELS.index(each[0][0].model), -each[1]))[0]


def far_ahead(
    picked: tuple[Candidate, Tried], tried: Sequence[tuple[Candidate, Tried]], metric: str
) -> tuple[Candidate, Tried]:
    """Gives the candidate that is furthest ahead of one on the shares that it has scores of.

    It must be ahead by more than _FAR standard deviations of a share's score; else it is that one.
    """
    merits = [merit(metric, score) for score in picked[1].scores]
    leads = [0.0] + [
        mean(merit(metric, score) for score in t.scores) - mean(merits[: len(t.scores)])
        for _, t in tried
    ]
    far = _FAR * stdev(merits) if len(merits) > 1 else math.inf
    lead, best = max(zip(leads, [picked, *tried], strict=True), key=lambda each: each[0])
    return best if lead > far else picked


def with_epochs(candidate: Candidate, epochs: int) -> Candidate:
    """Gives a candidate a number of epochs."""
    return dataclasses.replace(candidate, options={**candidate.options, "epochs": epochs})


def final_run(candidate: Candidate, settings: Settings, dataset: Dataset) -> RunConfig:
    """Gives the run of a candidate on all rows."""
    split = dataset.splits.get("eval")
    mode = "inline" if split is not None and split.rows else "none"
    return candidate.run({**settings.base, "eval": mode})

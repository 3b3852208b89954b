"""A stream of events whose ids come and go, as a dataset in the order of time.

An event shows an item, a place and a segment, with two numbers, and is a click or none. The stream
covers DAYS days evenly. Each item has a time of birth and one of four lives:

| life | share of events | an item's events |
|---|---|---|
| brief | 55% | rise and fall within days: the mean age is 2 days |
| long | 30% | rise and fall within months: the mean age is 20 days |
| lasting | 10% | all the time |
| seasonal | 5% | on one day in each 45 |

Items that were born before the stream begins are in it too. The items of a life that were born
together are as many as a share of the stream's events, and their popularity follows Zipf's law with
exponent 1. So at any moment few items are frequent, which ones changes all the time, and most are
seen once or twice: of 50 million events, about 22 million items, about two thirds of them once.

No time to live below 45 days and no limit keeps the seasonal items; the lasting ones never get old.
An item's life and its popularity say nothing about its clicks.

The logit of a click is the sum of an item's own effect, of the product of the item's vector with
the place's, of the segment's effect, and of the numbers'. So the events of an item teach about its
later ones, at other places too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from embedps.data.dataset import ROW_GROUP_ROWS, Dataset, describe_file
from embedps.data.dataset_metadata import CategoricalFeature, DataFile, NumericFeature, Split
from embedps.splitmix import mix

DAYS = 180
PLACES, SEGMENTS, FACTORS = 40, 2000, 4
_MS_PER_DAY = 86_400_000
_FIRST_DAY = 20_000  # since 1970
_SEASON_DAYS = 45
_CHUNK_ROWS = 1 << 20

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class _Life:
    """A way in which items come and go.

    Attributes:
      share: of the events.
      age_days: mean age of an item at an event.
      days_per_cohort: items are born in cohorts, one in so many days.
      items: of a cohort, over the stream's events.
    """

    share: float
    age_days: float
    days_per_cohort: float
    items: float


_BRIEF = _Life(0.55, 2, 0.25, 1 / 50)
_LONG = _Life(0.30, 20, 1, 1 / 50)
_LASTING_SHARE, _LASTING_ITEMS = 0.10, 0.4
_SEASONAL_ITEMS = 1 / 150


class DriftingStream:
    """Draws the events of a stream, chunk by chunk."""

    def __init__(self, events: int, seed: int) -> None:
        """Draws the effects of places and segments."""
        self.events = events
        self._seed = seed
        rng = np.random.default_rng([seed, 0])
        self._places = rng.normal(0, 0.5, [PLACES, FACTORS]).astype(np.float32)
        self._segments = rng.normal(0, 0.5, SEGMENTS).astype(np.float32)

    def chunks(self) -> Iterator[tuple[pa.Table, Floats]]:
        """Yields the events in order, and their logits."""
        for number, first in enumerate(range(0, self.events, _CHUNK_ROWS)):
            rng = np.random.default_rng([self._seed, 1, number])
            last = min(first + _CHUNK_ROWS, self.events)
            day = np.arange(first, last, dtype=np.float64) * (DAYS / self.events)
            yield self._draw(rng, day)

    def _draw(self, rng: np.random.Generator, day: npt.NDArray[np.float64]) -> tuple[Any, Floats]:
        items = self._items(rng, day)
        places = rng.integers(0, PLACES, len(day))
        segments = _zipf(rng, len(day), SEGMENTS)
        numbers = rng.standard_normal([2, len(day)], np.float32)
        own, vectors = item_effects(items)
        logits = (
            -1.6
            + own
            + np.einsum("ij,ij->i", vectors, self._places[places])
            + self._segments[segments]
            + 0.4 * numbers[0]
            - 0.3 * numbers[1]
        ).astype(np.float32)
        clicks = rng.random(len(day), np.float32) < 1 / (1 + np.exp(-logits))
        table = pa.table(
            {
                "click": clicks.astype(np.float32),
                "x0": numbers[0],
                "x1": numbers[1],
                "item": items,
                "place": places,
                "segment": segments,
                "time": ((_FIRST_DAY + day) * _MS_PER_DAY).astype(np.int64),
            }
        )
        return table.cast(pa.schema([field.with_nullable(False) for field in table.schema])), logits

    def _items(self, rng: np.random.Generator, day: npt.NDArray[np.float64]) -> Ids:
        """Draws the item of each event: a hash of its life, its cohort and its rank in it."""
        size = len(day)
        life = np.searchsorted(
            np.cumsum([_BRIEF.share, _LONG.share, _LASTING_SHARE]), rng.random(size), side="right"
        )
        cohort = np.zeros(size, np.int64)
        items = np.full(size, _LASTING_ITEMS * self.events)
        for kind, each in enumerate((_BRIEF, _LONG)):
            at = np.flatnonzero(life == kind)
            age = rng.standard_exponential([2, len(at)]).sum(axis=0) * (each.age_days / 2)
            cohort[at] = np.floor((day[at] - age) / each.days_per_cohort)
            items[at] = each.items * self.events
        at = np.flatnonzero(life == 3)
        cohort[at] = day[at].astype(np.int64) % _SEASON_DAYS
        items[at] = _SEASONAL_ITEMS * self.events
        ranks = _zipf(rng, size, np.maximum(items, 50))
        keys = ((life << 60) | ((cohort + (1 << 19)) << 40) | ranks).astype(np.uint64)
        return mix(keys).view(np.int64)


def item_effects(items: Ids) -> tuple[Floats, Floats]:
    """Gives the items' own effects [n], and their vectors [n, FACTORS]; they are hashes."""
    bits = mix(items.view(np.uint64) ^ np.uint64(0x5E1F))
    sums = bits.copy().view(np.uint16).reshape(-1, 4).astype(np.float32).sum(axis=1)
    parts = mix(bits).view(np.uint16).reshape(-1, FACTORS).astype(np.float32)
    own = (sums / 65535 - 2) * (np.sqrt(3) * 0.7)  # about normal, of deviation 0.7
    vectors = (parts / 65535 - 0.5) * np.sqrt(12)
    return own.astype(np.float32), vectors.astype(np.float32)


def _zipf(rng: np.random.Generator, size: int, items: Any) -> Ids:
    """Draws ranks from 0, whose probabilities go as ln(1 + 1 / (rank + 1))."""
    return np.asarray(np.exp(rng.random(size) * np.log(np.asarray(items) + 1)) - 1, np.int64)


def write_stream(directory: Path, events: int, *, seed: int = 1) -> dict[str, Any]:
    """Writes a stream as a dataset of one split, one file per 5 million events.

    Returns:
      What it holds: events, click rate, items, those seen once, the AUC of the planted logits.
    """
    stream = DriftingStream(events, seed)
    seen = np.empty(events, np.int64)
    histogram = np.zeros([2, 4096], np.int64)
    files: list[DataFile] = []
    clicks = done = 0
    for table, logits in stream.chunks():
        path = directory / "train" / f"events-{len(files):05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=ROW_GROUP_ROWS, compression="lz4")
        files.append(describe_file(directory, path))
        labels = table["click"].to_numpy() > 0
        bins = np.clip((logits + 8) * 256, 0, 4095).astype(np.int64)
        for kind in (0, 1):
            histogram[kind] += np.bincount(bins[labels == bool(kind)], minlength=4096)
        clicks += int(labels.sum())
        seen[done : done + len(labels)] = table["item"].to_numpy()
        done += len(labels)
    seen.sort()
    starts = np.flatnonzero(np.concatenate([[True], seen[1:] != seen[:-1]]))
    counts = np.diff(starts, append=events)
    split = Split(rows=events, positives=clicks, files=tuple(files))
    save_dataset(directory, {"train": split}, table.schema, items=len(counts))
    return {
        "events": events,
        "days": DAYS,
        "click_rate": round(clicks / events, 4),
        "items": len(counts),
        "items_seen_once": int((counts == 1).sum()),
        "items_seen_twice": int((counts == 2).sum()),
        "most_frequent_item": int(counts.max()),
        "planted_auc": round(_auc(*histogram), 5),
        "bytes": sum(file.bytes for file in files),
    }


def save_dataset(
    directory: Path,
    splits: Mapping[str, Split],
    schema: pa.Schema,
    *,
    items: int,
    without: Sequence[str] = (),
) -> None:
    """Writes what makes a dataset of files of events; it has all features but those `without`."""
    ids = (("item", items), ("place", PLACES), ("segment", SEGMENTS))
    Dataset(
        directory=directory,
        source="benchmarks.drifting_stream",
        label="click",
        timestamp="time",
        numeric=tuple(NumericFeature(name=name, transform="none") for name in ("x0", "x1")),
        categorical=tuple(
            CategoricalFeature(name=name, cardinality=number)
            for name, number in ids
            if name not in without
        ),
        schema={field.name: str(field.type) for field in schema},
        splits=splits,
    ).save()


def _auc(negatives: Ids, positives: Ids) -> float:
    """Computes the AUC of scores by the counts of each bin."""
    below = np.cumsum(negatives) - negatives / 2
    return float((positives * below).sum() / (positives.sum() * negatives.sum()))

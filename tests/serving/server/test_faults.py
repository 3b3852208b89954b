"""The newest manifest that is whole is served, whatever is damaged, absent or of other tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from embedps.data.dataset import Dataset
from embedps.errors import CorruptCheckpointError, DimMismatchError
from embedps.serving.server import served_model
from tests.builders import Replay, read_split
from tests.serving.builders import tensors
from tests.serving.server.builders import (
    Client,
    predict_request,
    score_of,
    serving,
    status,
    until,
)

Scores = Callable[[int], np.ndarray]
AVAILABLE, UNLOADING, END, DATA_LOSS = 30, 40, 50, 15


@pytest.fixture(autouse=True)
def _retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_model, "_FIRST_RETRY_SECS", 0.01)
    monkeypatch.setattr(served_model, "_LAST_RETRY_SECS", 0.01)


class Asker:
    """Asks for the first records of the eval split, and knows what each manifest answers."""

    def __init__(self, scores: Scores, dataset: Dataset, client: Client) -> None:
        self.client = client
        self._scores = scores
        self._request = predict_request(tensors(read_split(dataset).slice(0, 20)))

    def check(self, number: int) -> None:
        response = self.client.predict(self._request)
        assert response.model_spec.version.value == number
        np.testing.assert_array_equal(score_of(response), self._scores(number)[:20])


def damage_rows(replay: Replay, number: int) -> Callable[[], None]:
    """Damages a manifest's newest rows; gives what mends them."""
    path = replay.directory.file(replay.source.read(number).chain[-1].files[0])
    whole = path.read_bytes()
    path.write_bytes(whole[:-8] + bytes(8))

    def mend() -> None:
        path.write_bytes(whole)

    return mend


def damage_manifest(replay: Replay, number: int) -> Callable[[], None]:
    path = replay.directory.manifest_path(number)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])

    def mend() -> None:
        path.write_bytes(whole)

    return mend


@pytest.mark.parametrize("damage", [damage_rows, damage_manifest])
def test_a_start_serves_the_newest_manifest_that_is_whole(
    scores: Scores,
    replay: Replay,
    dataset: Dataset,
    damage: Callable[[Replay, int], Callable[[], None]],
) -> None:
    first, second, third = replay.numbers[:3]
    replay.commit(first, second, third)
    mend = damage(replay, third)
    with serving(replay.directory, dataset) as (api, model, addresses):
        asker = Asker(scores, dataset, addresses.client)
        asker.check(second)
        good, bad = status(asker.client).model_version_status
        assert (good.version, good.state) == (second, AVAILABLE)
        assert (bad.version, bad.state, bad.status.error_code) == (third, END, DATA_LOSS)
        assert 'embedps_follow_failing{model="clicks",ref=""} 1' in api.metrics.text()
        mend()  # no newer commit is needed
        until(lambda: model.standing.number == third)
        until(lambda: model.refusal is None)
        asker.check(third)
        assert 'embedps_follow_failing{model="clicks",ref=""} 0' in api.metrics.text()
        api.health.end()  # as the server begins to stop; what it has is still answered
        (left,) = status(asker.client).model_version_status
        assert (left.version, left.state) == (third, UNLOADING)


def test_a_start_without_a_whole_manifest_fails(replay: Replay, dataset: Dataset) -> None:
    (first, *_) = replay.numbers
    replay.commit(first)
    damage_rows(replay, first)
    with (
        pytest.raises(CorruptCheckpointError, match="xxh3_64"),
        serving(replay.directory, dataset),
    ):
        pass
    assert list(replay.directory.leases_dir.iterdir()) == []


def test_a_server_that_lags_goes_as_far_as_what_is_whole(
    scores: Scores, replay: Replay, dataset: Dataset
) -> None:
    first, second, third = replay.numbers[:3]
    replay.commit(first)
    with serving(replay.directory, dataset) as (_, model, addresses):
        asker = Asker(scores, dataset, addresses.client)
        damage_rows(replay, third)
        replay.commit(third)
        until(lambda: model.refusal is not None)
        asker.check(first)
        replay.commit(second)
        until(lambda: model.standing.number == second)
        assert model.refusal is not None
        assert model.refusal.number == third
        asker.check(second)


def test_tables_of_another_dim_are_refused(
    scores: Scores, replay: Replay, dataset: Dataset
) -> None:
    first, second = replay.numbers[:2]
    replay.commit(first)
    found = replay.source.read(second)
    tables = [{**table, "dim": 8} for table in found.tables]
    other = dataclasses.replace(found, tables=tuple(tables))
    with serving(replay.directory, dataset) as (_, model, addresses):
        asker = Asker(scores, dataset, addresses.client)
        replay.directory.commit(other)
        until(lambda: model.refusal is not None)
        assert model.refusal is not None
        assert "has embedding_dim 4, the checkpoint has 8: restore with" in model.refusal.message
        asker.check(first)
    refused = pytest.raises(DimMismatchError, match="has embedding_dim 4")
    with refused, serving(replay.directory, dataset):
        pass  # an older manifest would hide that the model is another


def test_a_directory_that_is_gone_is_told_and_found_again(
    scores: Scores, replay: Replay, dataset: Dataset
) -> None:
    first, second = replay.numbers[:2]
    replay.commit(first, second)
    path = replay.directory.path
    with serving(replay.directory, dataset) as (_, model, addresses):
        asker = Asker(scores, dataset, addresses.client)
        path.rename(path.with_name("away"))
        until(lambda: model.refusal is not None)
        (served,) = status(asker.client).model_version_status
        assert (served.version, served.state) == (second, AVAILABLE)
        assert "restart the server if it is another run's" in served.status.error_message
        asker.check(second)
        path.with_name("away").rename(path)
        until(lambda: model.refusal is None)

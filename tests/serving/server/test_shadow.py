"""A shadow scores what is asked of a model too: answers stay, and differences are recorded."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedps
from embedps.checkpoint.refs import move_ref
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.serving.server import shadow as shadow_module
from embedps.serving.server.batcher import Answer
from embedps.serving.server.metrics import ServerMetrics
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.served_model import ServedModel
from embedps.serving.server.shadow import Shadow
from tests.builders import Replay, read_split
from tests.serving.builders import tensors
from tests.serving.server.builders import NAME, predict_request, score_of, serving, until


def counted(metrics: ServerMetrics, outcome: str) -> float:
    """The shadow's requests of an outcome."""
    of = f'embedps_shadow_requests_total{{model="{NAME}",outcome="{outcome}",ref="canary"}} '
    return next(float(x.removeprefix(of)) for x in metrics.text().splitlines() if x.startswith(of))


def difference(api: ModelApi) -> tuple[float, float]:
    """How many requests were compared, and the sum of their differences."""
    of = f'{{model="{NAME}",ref="canary"}} '
    lines = dict(line.split(of) for line in api.metrics.text().splitlines() if of in line)
    count, total = (float(lines[f"embedps_shadow_difference_{x}"]) for x in ("count", "sum"))
    return count, total


def test_a_shadow_follows_its_ref_and_changes_no_answer(
    tmp_path: Path, trained: Path, replay: Replay, dataset: Dataset
) -> None:
    first, *_, last = replay.numbers
    directory, table = replay.directory, read_split(dataset).slice(0, 7)
    scores = {n: embedps.load(trained, number=n).predict(table)["score"] for n in (first, last)}
    for number in replay.numbers:
        replay.commit(number)
    move_ref(directory, "prod", last)
    move_ref(directory, "canary", first)
    log = tmp_path / "shadow.jsonl"
    options: dict[str, Any] = {"refs": ("prod",), "shadow": "canary", "shadow_log": log}
    with serving(directory, dataset, **options) as (api, _, addresses):
        shadow = api.shadows[NAME]
        until(lambda: shadow.model is not None)
        request = predict_request(tensors(table))

        def ask() -> None:
            before = difference(api)[0]
            response = addresses.client.predict(request)
            assert response.model_spec.version.value == last
            np.testing.assert_array_equal(score_of(response), scores[last])
            until(lambda: difference(api)[0] == before + 1)

        ask()
        apart = np.abs(scores[last] - scores[first], dtype=np.float64).mean()
        assert difference(api) == pytest.approx((1, apart))
        assert apart > 1e-4
        # The label of a shadow is nobody's version.
        with pytest.raises(Exception, match="has no version label 'canary'"):
            addresses.client.predict(predict_request(tensors(table), label="canary"))
        of_canary = f'embedps_manifest_number{{model="{NAME}",ref="canary"}}'
        assert f"{of_canary} {float(first)}" in api.metrics.text()

        move_ref(directory, "canary", last)
        until(lambda: shadow.model is not None and shadow.model.standing.number == last)
        ask()
        assert difference(api) == pytest.approx((2, apart))
        assert f"{of_canary} {float(last)}" in api.metrics.text()
        assert [counted(api.metrics, x) for x in ("scored", "dropped", "failed")] == [2, 0, 0]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(x["version"], x["shadow"], x["shadow_version"]) for x in lines] == [
        (last, "canary", first),
        (last, "canary", last),
    ]
    for line, number in zip(lines, (first, last), strict=True):
        np.testing.assert_array_equal(np.float32(line["predictions"]["score"]), scores[last])
        found = line["shadow_predictions"]["score"]
        np.testing.assert_array_equal(np.float32(found), scores[number])


def test_a_broken_shadow_hurts_no_answer(
    tmp_path: Path,
    replay: Replay,
    dataset: Dataset,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shadow_module, "_RETRY_SECS", 0.1)
    first, *_, last = replay.numbers
    directory, table = replay.directory, read_split(dataset).slice(0, 3)
    replay.commit(first, last)
    move_ref(directory, "canary", first)
    damaged = directory.file(replay.source.read(first).chain[0].files[0])
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-8] + bytes(8))
    request = predict_request(tensors(table))
    options: dict[str, Any] = {
        "shadow": "canary",
        "shadow_log": tmp_path,
    }  # a directory cannot be written
    with serving(directory, dataset, **options) as (api, _, addresses):
        assert addresses.client.predict(request).model_spec.version.value == last
        until(lambda: counted(api.metrics, "dropped") == 1)
        until(lambda: "clicks: the shadow does not score: " in capfd.readouterr().out)
        damaged.write_bytes(whole)
        until(lambda: api.shadows[NAME].model is not None)
        assert addresses.client.predict(request).model_spec.version.value == last
        until(lambda: counted(api.metrics, "failed") == 1)
        assert counted(api.metrics, "scored") == 0


def test_a_busy_shadow_drops_requests_and_delays_none(replay: Replay, dataset: Dataset) -> None:
    replay.commit(replay.numbers[0])
    move_ref(replay.directory, "canary", replay.numbers[0])
    request = predict_request(tensors(read_split(dataset).slice(0, 3)))
    gate, begun = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert gate.wait(60)

    with serving(replay.directory, dataset, shadow="canary") as (api, served, addresses):
        shadow = api.shadows[NAME]
        until(lambda: shadow.model is not None)
        assert shadow.model is not None
        holder = threading.Thread(target=shadow.model._batcher.between, args=(hold,))
        holder.start()
        assert begun.wait(60)
        for _ in range(12):
            addresses.client.predict(request)
        dropped = counted(api.metrics, "dropped")
        assert 12 - dropped in (8, 9)  # that wait, and one that the thread has taken
        large = served.model.format.zeros(1 << 17)
        shadow.offer(large, Answer(number=0, outputs={}))
        assert counted(api.metrics, "dropped") == dropped + 1
        gate.set()
        until(lambda: counted(api.metrics, "scored") == 12 - dropped)
        holder.join()


def test_a_shadow_takes_its_share(replay: Replay, dataset: Dataset) -> None:
    replay.commit(replay.numbers[0])
    ended = threading.Event()
    with serving(replay.directory, dataset) as (api, served, _):

        def load() -> ServedModel:
            ended.wait(60)
            raise UsageError("the test is over")

        counts = api.metrics.shadow_counts(NAME, "canary")
        shadow = Shadow(NAME, load, share=0.25, counts=counts)
        request = served.model.format.zeros(1)
        for _ in range(4000):
            shadow.offer(request, Answer(number=0, outputs={}))
        assert 800 < counted(api.metrics, "dropped") < 1200
        ended.set()
        shadow.close()

"""What is served is what was trained, while checkpoints arrive, files break, histories change."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pyarrow.parquet as pq
import pytest

import embedps
from embedps import evaluate
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.serving.server.live_model import LiveModel
from embedps.serving.server.requests import concatenate, split
from tests.builders import COLUMNS, MIXED, Replay, read_split
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


@pytest.mark.slow
def test_each_answer_is_the_evaluators_of_the_manifest_it_names(
    trained: Path, replay: Replay, dataset: Dataset, tmp_path: Path
) -> None:
    table = read_split(dataset)
    whole = tensors(table)
    answers: list[tuple[int, int, int, np.ndarray]] = []
    replay.commit(replay.numbers[0])
    ended = threading.Event()

    def ask(seed: int, address: str, least: int) -> None:
        rng = random.Random(seed)
        client = Client(address)
        count = 0
        while count < least or not ended.is_set():
            rows = min(1000, int(10 ** rng.uniform(0, 3.1)))
            first = rng.randrange(table.num_rows - rows)
            part = {name: array[first : first + rows] for name, array in whole.items()}
            response = client.predict(predict_request(part))
            number = response.model_spec.version.value
            answers.append((number, first, rows, score_of(response)))
            count += 1
        client.close()

    with serving(replay.directory, dataset) as (_, model, addresses):
        threads = [
            threading.Thread(target=ask, args=(seed, addresses.grpc, 75)) for seed in range(4)
        ]
        for thread in threads:
            thread.start()
        for number in replay.numbers:
            replay.commit(number)
            until(lambda n=number: model.standing.number == n)
            until(lambda n=number: sum(of == n for of, *_ in answers) > 8)
        ended.set()
        for thread in threads:
            thread.join()
        assert model.refusal is None
    assert {number for number, *_ in answers} == set(replay.numbers)
    expected = {}
    for number in replay.numbers:
        file = tmp_path / f"{number}.parquet"
        flags = ["--model-dir", str(trained), "--number", str(number), "--scores", str(file)]
        assert command_line.run(evaluate.main, flags) == 0
        expected[number] = pq.read_table(file)["score"].to_numpy()
    first_two = [expected[number] for number in replay.numbers[:2]]
    assert not np.array_equal(first_two[0], first_two[1])
    assert len(answers) >= 300
    for number, first, rows, found in answers:
        wanted = expected[number][first : first + rows]
        np.testing.assert_array_equal(found, wanted)


def test_a_damaged_delta_leaves_the_manifest_before_it(
    scores: Scores, replay: Replay, dataset: Dataset
) -> None:
    first, second = replay.numbers[:2]
    replay.commit(first)
    part = tensors(read_split(dataset).slice(0, 5))
    with serving(replay.directory, dataset) as (api, model, addresses):
        client = addresses.client
        before = score_of(client.predict(predict_request(part)))
        entry = replay.source.read(second).chain[-1].files[0]
        damaged = replay.directory.file(entry)
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:-8] + bytes(8))
        replay.commit(second)
        until(lambda: model.refusal is not None)
        response = client.predict(predict_request(part, version=first))
        np.testing.assert_array_equal(score_of(response), before)
        good, bad = status(client).model_version_status
        assert (good.version, good.state) == (first, 30)
        assert (bad.version, bad.state, bad.status.error_code) == (second, 50, 15)
        assert str(damaged) in bad.status.error_message
        assert 'embedps_follow_failing{model="clicks",ref=""} 1' in api.metrics.text()
        # A newer manifest gets another try.
        damaged.write_bytes(whole)
        replay.commit(replay.numbers[2])
        until(lambda: model.standing.number == replay.numbers[2])
        assert model.refusal is None
        assert len(status(client).model_version_status) == 1
        with pytest.raises(grpc.RpcError, match=f"served as version {replay.numbers[2]}"):
            client.predict(predict_request(part, version=first))
        want = scores(replay.numbers[2])[:5]
        np.testing.assert_array_equal(score_of(client.predict(predict_request(part))), want)


def test_a_new_history_is_loaded_beside_what_is_served(
    scores: Scores, replay: Replay, dataset: Dataset
) -> None:
    first, last = replay.numbers[0], replay.numbers[-1]
    replay.commit(last)
    whole = tensors(read_split(dataset))
    with serving(replay.directory, dataset) as (_, model, addresses):
        client = addresses.client
        served = model.model
        other = dataclasses.replace(
            replay.source.read(first), number=last + 5, history="0123456789abcdef"
        )
        replay.directory.commit(other)
        numbers = set()
        while last + 5 not in numbers:  # no request is refused meanwhile
            numbers.add(client.predict(predict_request(whole)).model_spec.version.value)
        assert numbers <= {last, last + 5}
        assert model.model is not served
        found = score_of(client.predict(predict_request(whole)))
        np.testing.assert_array_equal(found, scores(first))


def test_a_broken_way_is_left_for_a_newer_base(
    scores: Scores, replay: Replay, dataset: Dataset
) -> None:
    first, second, last = replay.numbers[0], replay.numbers[1], replay.numbers[-1]
    replay.commit(first)
    part = tensors(read_split(dataset).slice(0, 5))
    with serving(replay.directory, dataset) as (_, model, addresses):
        replay.directory.file(replay.source.read(second).chain[-1].files[0]).unlink()
        replay.commit(second)
        until(lambda: model.refusal is not None)
        assert replay.source.read(last).chain[0].number != first  # it has a base of its own
        replay.commit(last)
        until(lambda: model.standing.number == last)
        assert model.refusal is None
        found = addresses.client.predict(predict_request(part))
        assert found.model_spec.version.value == last
        np.testing.assert_array_equal(score_of(found), scores(last)[:5])


def test_a_pinned_manifest_stays(replay: Replay, dataset: Dataset) -> None:
    first, second = replay.numbers[:2]
    replay.commit(first, second)
    with serving(replay.directory, dataset, number=first) as (_, model, addresses):
        client = addresses.client
        part = tensors(read_split(dataset).slice(0, 5))
        assert client.predict(predict_request(part)).model_spec.version.value == first
        assert model._thread is None
    with serving(replay.directory, dataset, follows=False) as (_, model, _):
        assert model.standing.number == second
        assert model._thread is None


def test_fuzzed_requests_are_refused_and_the_server_lives(replay: Replay, dataset: Dataset) -> None:
    replay.commit(replay.numbers[0])
    part = tensors(read_split(dataset).slice(0, 3))
    good = predict_request(part).SerializeToString()
    rng = random.Random(5)
    with serving(replay.directory, dataset) as (_, _, addresses):
        client = addresses.client
        codes = set()
        for _ in range(1000):
            data = bytearray(good)
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            if rng.random() < 0.3:
                del data[rng.randrange(len(data)) :]
            try:
                client.predict(bytes(data))
                codes.add("OK")  # other values are as good
            except grpc.RpcError as error:
                codes.add(error.code().name)
        assert codes <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}
        assert "INVALID_ARGUMENT" in codes
        assert client.predict(good).model_spec.version.value == replay.numbers[0]


def test_lists_are_scored(mixed: tuple[Dataset, Path]) -> None:
    dataset, model_dir = mixed
    directory = CheckpointDirectory(model_dir)
    manifest = directory.read(directory.numbers()[-1])
    live = LiveModel(MIXED, dataset, directory, manifest)
    table = read_split(dataset).slice(0, 300)
    loaded = embedps.load(model_dir, recommender=MIXED, data=dataset.directory)
    requests = [
        live.format.request(tensors(table.slice(first, rows), (*COLUMNS, "tags", "row")))
        for first, rows in ((0, 7), (7, 1), (8, 292))
    ]
    whole, wanted = concatenate(requests), loaded.predict(table)["score"]
    np.testing.assert_array_equal(live.score(whole).outputs["score"], wanted)
    parts = [*split(whole, max_rows=64, max_values=70)]
    assert len(parts) > 5
    scores = [live.score(part).outputs["score"] for part in parts]
    np.testing.assert_array_equal(np.concatenate(scores), wanted)
    live.close()


def test_the_parts_of_a_request_have_the_bits_of_the_whole(
    scores: Scores, replay: Replay, dataset: Dataset
) -> None:
    number = replay.numbers[0]
    replay.commit(number)
    table = read_split(dataset)
    request = predict_request(tensors(table))
    wanted = scores(number)
    for part_rows in (100, table.num_rows):
        with serving(replay.directory, dataset, part_rows=part_rows) as (api, _, addresses):
            client = addresses.client
            np.testing.assert_array_equal(score_of(client.predict(request)), wanted)
            batches = -(-table.num_rows // part_rows)
            assert (
                f'embedps_batch_rows_count{{model="clicks",ref=""}} {batches}.0'
                in api.metrics.text()
            )

"""A server follows refs: promotion, rollback, canary. An answer is of the manifest it names."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import grpc
import numpy as np
import pytest

import embedps
from embedps.checkpoint import Reached, Reset, Rows, follow
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.refs import move_ref
from embedps.data.dataset import Dataset
from tests.builders import LEARN, TINY_DLRM, Replay, latest, make_config, read_split
from tests.commands import checkpoint_command
from tests.serving.builders import tensors
from tests.serving.server.builders import (
    Addresses,
    ask_rest,
    predict_request,
    score_of,
    serving,
    status,
    until,
)


def of_one_chain(replay: Replay) -> tuple[int, int, int]:
    """The base's manifest, and those of the two deltas that lead on from it."""
    base = replay.numbers[0]
    first, second, last, *_ = (
        n for n in replay.numbers if replay.source.read(n).chain[0].number == base
    )
    return first, second, last


def test_server_follows_its_refs(trained: Path, replay: Replay, dataset: Dataset) -> None:
    first, second, last = of_one_chain(replay)
    directory, table = replay.directory, read_split(dataset).slice(0, 5)
    part = tensors(table)
    expected = {n: embedps.load(trained, number=n).predict(table)["score"] for n in (first, last)}
    for number in replay.numbers:
        replay.commit(number)
    move_ref(directory, "prod", first)
    move_ref(directory, "canary", last)
    with serving(directory, dataset, refs=("prod", "canary")) as (api, prod, addresses):
        client, canary = addresses.client, api.refs["clicks", "canary"]

        def check(number: int, **spec: object) -> None:
            response = client.predict(predict_request(part, **spec))
            assert response.model_spec.version.value == number
            np.testing.assert_array_equal(score_of(response), expected[number])

        # A canary: each label and version has its manifest. The first ref is the default.
        check(first)
        check(first, label="prod")
        check(last, label="canary")
        check(last, version=last)
        assert {v.version for v in status(client).model_version_status} == {first, last}
        url = f"{addresses.rest}/v1/models/clicks"
        lists = {name: [None if x != x else x for x in a.tolist()] for name, a in part.items()}
        code, said = ask_rest(f"{url}/labels/canary:predict", {"inputs": lists})
        assert code == 200
        np.testing.assert_array_equal(np.float32(said["outputs"]), expected[last])
        _, said = ask_rest(f"{url}/labels/canary")
        assert [v["version"] for v in said["model_version_status"]] == [str(last)]
        _, said = ask_rest(f"{url}/labels/canary/metadata")
        assert said["model_spec"]["version"] == str(last)
        code, said = ask_rest(f"{url}/labels/stable:predict", {"inputs": lists})
        assert code == 400
        assert said.startswith("model 'clicks' has no version label 'stable': its labels are ")
        with pytest.raises(grpc.RpcError, match="has no version label") as quoted:
            client.predict(predict_request(part, label="é\n\x1b[31m" * 50_000))
        assert quoted.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert len(quoted.value.details().encode()) <= 1000
        assert quoted.value.details().isprintable()
        text = api.metrics.text()
        for ref, number, requests in (("prod", first, 2), ("canary", last, 3)):
            of = f'{{model="clicks",ref="{ref}"}}'
            assert f"embedps_manifest_number{of} {float(number)}" in text
            assert f"embedps_batch_rows_count{of} {float(requests)}" in text

        # A promotion by deltas, in place; the canary stays.
        live = prod.model
        move_ref(directory, "prod", "canary")
        until(lambda: prod.standing.number == last)
        assert prod.model is live
        check(last)

        # A rollback is a load of its own: no delta leads back.
        move_ref(directory, "prod", first)
        until(lambda: prod.standing.number == first)
        assert prod.model is not live
        check(first)
        check(last, label="canary")

        # What cannot be served changes nothing.
        damaged = directory.file(replay.source.read(second).chain[-1].files[0])
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:-8] + bytes(8))
        move_ref(directory, "prod", second)
        until(lambda: prod.refusal is not None)
        check(first)
        damaged.write_bytes(whole)
        until(lambda: prod.standing.number == second)
        assert prod.refusal is None
        move_ref(directory, "canary", None)
        until(lambda: canary.refusal is not None)
        assert "has no ref 'canary'" in str(canary.refusal)
        check(last, label="canary")
        move_ref(directory, "canary", first)
        until(lambda: canary.standing.number == first)
        assert canary.refusal is None
        check(first, label="canary")


def test_server_of_an_unknown_ref_is_refused(replay: Replay, dataset: Dataset) -> None:
    replay.commit(replay.numbers[0])
    with (
        pytest.raises(embedps.errors.UsageError, match="has no ref 'prod': there are none"),
        serving(replay.directory, dataset, refs=("prod",)),
    ):
        pass


def test_follower_of_a_ref_goes_forward_by_deltas_and_back_by_a_reset(replay: Replay) -> None:
    first, _, last = of_one_chain(replay)
    for number in replay.numbers:
        replay.commit(number)
    move_ref(replay.directory, "prod", first)
    moves = iter([last, first, None])
    kinds, reached = [], []

    def read() -> None:
        for change in follow(replay.directory, ref="prod"):
            if not isinstance(change, Rows):
                kinds.append(type(change))
            if isinstance(change, Reached) and change.complete:
                reached.append(change.manifest.number)
                move_ref(replay.directory, "prod", next(moves))

    with pytest.raises(embedps.errors.UsageError, match="has no ref 'prod'"):
        read()
    assert reached == [first, last, first]
    assert kinds.count(Reset) == 2
    assert kinds[0] is Reset
    assert kinds[-2:] == [Reset, Reached]


def test_a_model_retrained_elsewhere_takes_over(
    tmp_path: Path, trained: Path, replay: Replay, dataset: Dataset
) -> None:
    *_, last = of_one_chain(replay)
    table = read_split(dataset).slice(0, 5)
    request = predict_request(tensors(table))
    for number in replay.numbers:
        replay.commit(number)
    move_ref(replay.directory, "prod", last)

    def retrained(name: str, *bottom_mlp: int) -> Path:
        config = make_config(dataset, tmp_path / name, model="dlrm", seed=5, **LEARN)
        model = dataclasses.replace(TINY_DLRM, bottom_mlp=bottom_mlp)
        embedps.Trainer.from_config(config, model).fit()
        number = str(latest(tmp_path / name).number)
        assert checkpoint_command(["tag", str(tmp_path / name), "prod", number]) == 0
        return tmp_path / name

    same, deeper = retrained("same", 8), retrained("deeper", 8, 4)
    old = replay.directory.path
    expected = {
        model_dir: embedps.load(model_dir, number="prod").predict(table)["score"]
        for model_dir in (old, same, deeper)
    }
    assert all(np.abs(expected[new] - expected[old]).max() > 1e-3 for new in (same, deeper))

    def check(addresses: Addresses, model_dir: Path) -> None:
        response = addresses.client.predict(request)
        np.testing.assert_array_equal(score_of(response), expected[model_dir])

    def point_to(model_dir: Path) -> None:
        (tmp_path / "next").symlink_to(model_dir)
        (tmp_path / "next").replace(tmp_path / "current")

    point_to(old)
    current = CheckpointDirectory(tmp_path / "current")
    with serving(current, dataset, refs=("prod",)) as (_, served, addresses):
        check(addresses, old)
        # By a server of its own, whatever has changed.
        with serving(CheckpointDirectory(deeper), dataset, refs=("prod",)) as (_, _, fresh):
            check(fresh, deeper)
            check(addresses, old)
        # By a link: another model is refused, the same one takes its place, and goes again.
        point_to(deeper)
        until(lambda: served.refusal is not None)
        assert "the network must have '" in str(served.refusal)
        check(addresses, old)
        point_to(same)
        until(lambda: served.standing.number != last)
        check(addresses, same)
        assert served.refusal is None
        point_to(old)
        until(lambda: served.standing.number == last)
        check(addresses, old)

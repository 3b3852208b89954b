"""An embedps.Coordinator tells when calls end, binds them to workers, and gives workers values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stock_cluster import stock_cluster

pytestmark = pytest.mark.multiprocess


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with stock_cluster(Path(tmp_path_factory.mktemp("servers"))) as cluster:
        output = cluster.run("-m", "tests.keras.coordinator_program")
    return json.loads(output.splitlines()[-1])


def test_a_bound_call_runs_on_its_worker_with_that_workers_values(found: Any) -> None:
    first, second = found["workers"]
    assert found["bound"] == sorted([[first, first], [second, second], [second, second]])
    assert found["done"]


def test_a_callback_gets_the_value_or_the_error(found: Any) -> None:
    assert found["any"][0] == found["any"][1]
    assert [text.split(":")[0] for text in found["failed"]] == ["InvalidArgumentError"] * 2
    assert "no such film" in found["failed"][1]


def test_a_bound_call_is_refused_when_its_worker_is_lost(found: Any) -> None:
    lost = (
        "ClusterError: worker 1 must run this call, which is bound to it, but was lost: schedule "
        "it again, or without worker="
    )
    assert found["lost"] == [lost, lost]
    assert found["joined"] == [lost, ""]
    assert found["other"] == [found["workers"][0]] * 2


def test_a_workers_values_are_made_again_when_it_is_back(found: Any) -> None:
    own, worker = found["rebuilt"]
    assert own == worker
    assert worker not in found["workers"]


def test_fit_trains_by_it(found: Any) -> None:
    assert found["fitted"]


def test_mistakes_are_named(found: Any) -> None:
    no_worker, no_function, other_class = found["mistakes"]
    assert no_worker == "UsageError: worker must be from 0 to 1 but is 2"
    assert "schedule must get a tf.function but got <function process_id" in no_function
    assert "which must be an embedps.Coordinator, but it is a ClusterCoordinator" in other_class

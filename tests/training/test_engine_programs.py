"""What a user's script does with a Trainer on a cluster: see engine_program.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_program
from tests.training.engine_program import EPOCHS, ROWS
from tests.training.same_bits import assert_same_checkpoint

pytestmark = pytest.mark.multiprocess


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("engine")
    shown = run_program("-m", "tests.training.engine_program", folder, timeout_secs=240)
    line = next(line for line in shown.splitlines() if line.startswith("found "))
    result: dict[str, Any] = json.loads(line.removeprefix("found "))
    return result


def test_callbacks_are_told_of_a_worker_that_is_killed_and_of_its_return(found):
    assert found["lost_worker"] == [
        "killed",
        ["lost", 0],
        ["recovered", "worker 0 was lost", True, 0, 0],
        ["end", "seen enough"],
    ]


def test_every_batch_of_a_resumable_dataset_is_visited_though_a_worker_is_killed(found):
    run = found["made_in_memory"]["True"]
    assert run["killed"]
    assert run["units"] == [48, 48]
    assert run["fewest"] >= EPOCHS
    assert run["examples"] == EPOCHS * ROWS
    # Of units that two attempts train, no step is applied twice but the one in progress.
    assert run["visits"] <= EPOCHS * ROWS + 2 * 64


def test_steps_of_a_dataset_that_is_not_resumable_are_all_done_though_a_worker_is_killed(found):
    run = found["made_in_memory"]["False"]
    assert (run["killed"], run["units"]) == (True, [48, 48])
    assert 0 < run["examples"] <= EPOCHS * 26 * 64


def test_workers_in_step_train_the_bits_of_the_same_rows_in_files(found):
    assert_same_checkpoint(*map(Path, found["in_step"]))

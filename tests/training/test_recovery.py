"""A process that lost its cluster begins anew, or ends, as it is told to."""

import json
import os
from typing import Any

import pytest

from embedps.training.lost_progress import LostProgress
from embedps.training.recovery import take_loss
from tests import forked
from tests.builders import ROOT

PROGRAM = """
import json, os, signal, sys, types
from embedps.console.shutdown import sigterm_exits
from embedps.errors import ClusterError, ServerLostError
from embedps.training.recovery import Recovery, take_loss

number, kind = int(sys.argv[1]), sys.argv[2]
loss = take_loss()
known = None if loss is None else [loss.checkpoint, loss.units, loss.fruitless]
print(json.dumps(known), flush=True)
recovery = Recovery(loss, again=kind != "cluster")
if kind != "early":
    def close():
        print("ended", flush=True)
        trainer.told_to_end = kind == "told meanwhile"

    trainer = types.SimpleNamespace(
        told_to_end=kind == "told",
        close=close,
        unsaved=lambda: {"checkpoint": number, "units": 2, "steps": 8, "examples": 99},
    )
    recovery.follow(trainer)
if loss is not None and kind == "signal":
    os.kill(os.getpid(), signal.SIGTERM)
    print("lives", flush=True)
    with sigterm_exits(60):
        print("goes on", flush=True)
if loss is not None and kind == "once":
    sys.exit(0)
error = ClusterError if kind == "other" else ServerLostError
recovery.begin(error("ps 1 ended by SIGKILL"))
"""


def run(kind: str, number: int = 7, **env: str) -> tuple[int, list[str], str]:
    done = forked.run(
        ["-c", PROGRAM, str(number), kind],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        timeout=60,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_process_begins_anew_and_knows_what_was_lost():
    code, out, err = run("once")
    assert (code, err) == (0, "")
    assert out == [
        "null",
        "ps 1 ended by SIGKILL: going on from checkpoint 7; 2 units done since (8 steps, 99 "
        "examples) are lost",
        "ended",
        "[7, 2, 1]",
    ]


def test_recoveries_in_a_row_without_a_new_checkpoint_have_a_bound():
    code, out, err = run("again")
    assert code == 1
    assert [json.loads(line) for line in out if line[0] in "[n"] == [
        None,
        [7, 2, 1],
        [7, 2, 2],
        [7, 2, 3],
    ]
    assert "3 recoveries in a row came to no new checkpoint" in err


def test_a_unit_that_was_set_aside_meanwhile_is_a_step_ahead():
    loss: dict[str, Any] = {"why": "x", "noticed_at": 0.0, "units": 1, "steps": 1, "examples": 1}
    before = {**loss, "checkpoint": 7, "fruitless": 3}
    code, out, _ = run("again", EMBEDPS_RECOVERY=json.dumps({**before, "set_aside": -1}))
    known = [json.loads(line) for line in out if line[0] in "[n"]
    assert (code, known) == (1, [[7, 1, 3], [7, 2, 1], [7, 2, 2], [7, 2, 3]])


def test_loss_at_the_start_is_of_the_checkpoint_before():
    loss: dict[str, Any] = {"why": "x", "noticed_at": 0.0, "units": 1, "steps": 1, "examples": 1}
    before = json.dumps({**loss, "checkpoint": 5, "fruitless": 3})
    code, out, _ = run("early", EMBEDPS_RECOVERY=before)
    assert (code, out) == (1, ["[5, 1, 3]"])


def test_client_of_others_servers_ends_with_the_code_of_a_temporary_failure():
    code, out, err = run("cluster")
    assert (code, out) == (75, ["null"])
    assert err == (
        "embedps: ps 1 ended by SIGKILL: run the same command again to resume from the last "
        "checkpoint\n"
    )


@pytest.mark.parametrize("kind", ["told", "told meanwhile"])
def test_run_that_was_told_to_end_does_not_begin_anew(kind):
    assert run(kind)[0] == 75


def test_a_signal_waits_until_the_process_that_begins_anew_handles_it():
    code, out, err = run("signal")
    assert (code, out[-1], err) == (0, "lives", "")


def test_other_errors_of_a_cluster_are_no_losses():
    code, _, err = run("other")
    assert (code, err) == (1, "embedps: ps 1 ended by SIGKILL\n")


def test_there_is_no_loss_where_none_was_handed_on(monkeypatch):
    monkeypatch.delenv("EMBEDPS_RECOVERY", raising=False)
    assert take_loss() is None
    described = LostProgress(why="x", noticed_at=0.0, checkpoint=None, units=0, steps=0, examples=0)
    assert "going on from the beginning" in described.describe()

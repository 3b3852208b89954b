import dataclasses
import json
import shutil
from typing import Any

import pytest

from benchmarks import environments, races, report, tables, workload
from benchmarks.__main__ import main
from benchmarks.peers.protocol import Variant
from embedps.errors import UsageError
from tests.benchmarks.builders import TINY


def lane(entrant, kind="sgd", precision="float32", batch=64):
    variant = Variant(task="train", kind=kind, precision=precision, batch=batch)
    return races.Lane(entrant=entrant, variant=variant)


def hold(entrants, lanes):
    meeting = races.Meeting(
        title="tiny",
        workload=TINY,
        entrants=tuple(entrants),
        races=(races.Race(group="SGD", name="float32 64", lanes=tuple(lanes)),),
    )
    timing = races.Timing(rounds=2, secs=0.02)
    return races.hold(meeting, workload.make_batches(TINY, 2048), timing)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_ours_races_beside_a_peer_that_cannot_be_installed(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = environments.Peer(
        title="broken", module="none", environment="b", packages=(str(tmp_path / "no-such.whl"),)
    )
    monkeypatch.setitem(environments.PEERS, "broken", broken)
    entrants = [
        races.Entrant(title="embedps", peer=races.OURS),
        races.Entrant(title="broken", peer="broken"),
    ]
    held = hold(entrants, [lane("embedps"), lane("embedps", "adagrad"), lane("broken")])
    assert list(held["absent"]) == ["broken"]
    assert "cannot be installed" in held["absent"]["broken"]
    assert "not measured: broken: cannot be installed" in capfd.readouterr().out
    sgd, adagrad = held["races"][0]["lanes"]
    assert (sgd["kind"], adagrad["kind"]) == ("sgd", "adagrad")
    assert sgd["ours_to_this"]["median"] == 1
    for a, b in zip(sgd["rates"], adagrad["rates"], strict=True):
        assert adagrad["ours_to_this"]["min"] <= a / b * 1.01
        assert a > 0
    assert "numpy" in held["versions"]["embedps"]
    tables.plot([held], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.multiprocess
def test_another_lane_begins_each_round(monkeypatch):
    order = []
    measure = races._Field.measure

    def noted(field, its, secs):
        order.append(its.variant.kind)
        return measure(field, its, secs)

    monkeypatch.setattr(races._Field, "measure", noted)
    hold(
        [races.Entrant(title="embedps", peer=races.OURS)],
        [lane("embedps"), lane("embedps", "adagrad")],
    )
    assert order == ["sgd", "adagrad", "adagrad", "sgd"]


@pytest.mark.multiprocess
def test_a_peer_that_fails_is_said_and_the_others_go_on(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Installed, by its stamp; its interpreter ends at once.
    folder = environments.cache() / "b"
    (folder / "bin").mkdir(parents=True)
    shutil.copy("/bin/false", folder / "bin" / "python")
    (folder / "installed").write_text("")
    dead = environments.Peer(title="dead", module="none", environment="b", packages=())
    monkeypatch.setitem(environments.PEERS, "dead", dead)
    entrants = [
        races.Entrant(title="embedps", peer=races.OURS),
        races.Entrant(title="dead", peer="dead"),
    ]
    held = hold(entrants, [lane("embedps"), lane("dead")])
    assert held["absent"] == {"dead": "ended with code 1"}
    assert [x["entrant"] for x in held["races"][0]["lanes"]] == ["embedps"]


def result(entrant, rates, ours, **variant):
    ratios = [a / b for a, b in zip(ours, rates, strict=True)]
    of_lane = dataclasses.asdict(lane(entrant, **variant).variant)
    return {
        "entrant": entrant,
        **of_lane,
        "rate": report.spread(rates),
        "ours_to_this": report.spread(ratios),
    }


def test_a_table_compares_within_rounds_and_the_verdict_the_best():
    ours, theirs = [300e3, 100e3, 200e3], [100e3, 100e3, 50e3]
    meeting: dict[str, Any] = {
        "title": "t",
        "ours": "embedps",
        "absent": {},
        "races": [
            {
                "group": "Adagrad",
                "race": "float32 64",
                "lanes": [
                    result("embedps", ours, ours, kind="rowwise_adagrad"),
                    result("peer", theirs, ours, kind="adagrad"),
                ],
            },
            {
                "group": "Adagrad",
                "race": "bfloat16 64",
                "lanes": [
                    result("peer", [150e3] * 3, ours, kind="adagrad", precision="bfloat16"),
                ],
            },
        ],
    }
    columns, rows = tables.grid(meeting["races"])
    assert columns[1:] == ["float32 64", "bfloat16 64"]
    assert rows[0] == ["embedps, row-wise Adagrad", "200.0k", "-"]
    assert rows[1][1] == "100.0k  3.00x (1.00 to 4.00)"
    every, float32 = tables.verdicts(meeting)
    assert "any precision" in every
    assert "1.33x of peer, Adagrad (150.0k, bfloat16 64)" in every
    assert "2.00x of peer, Adagrad (100.0k, float32 64)" in float32


def test_an_unknown_peer_is_refused():
    with pytest.raises(UsageError, match=r"--peers must be of tf,.* but has fast"):
        main(["run", "--peers", "tf,fast"])


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_command_writes_json_and_a_plot(tmp_path, capfd):
    arguments = ["run", "--suite", "lookup", "--batch-sizes", "256", "--rounds", "1"]
    arguments += ["--secs", "0.05", "--output", str(tmp_path)]
    assert main(arguments) == 0
    written = json.loads((tmp_path / "lookup.json").read_text())
    assert written["environment"]["versions"]["tensorflow"]
    assert written["config"]["rounds"] == 1
    kinds = [x["kind"] for m in written["meetings"] for r in m["races"] for x in r["lanes"]]
    assert kinds == ["sgd", "rowwise_adagrad", "adagrad"]
    assert (tmp_path / "lookup.png").exists()
    assert "row-wise Adagrad" in capfd.readouterr().out

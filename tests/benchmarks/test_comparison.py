import dataclasses
import json
import shutil
from typing import Any

import pytest

from benchmarks import comparison, environments, rates, report, workload
from benchmarks.__main__ import main
from benchmarks.peers.protocol import Variant
from embedps.errors import UsageError
from tests.benchmarks.builders import TINY


def case(system, kind="sgd", precision="float32", batch=64):
    variant = Variant(task="train", kind=kind, precision=precision, batch=batch)
    return comparison.Case(system=system, variant=variant)


def measure(systems, cases):
    whole = comparison.Comparison(
        title="tiny",
        workload=TINY,
        systems=tuple(systems),
        configurations=(
            comparison.Configuration(group="SGD", name="float32 64", cases=tuple(cases)),
        ),
    )
    timing = comparison.Timing(rounds=2, secs=0.02)
    return comparison.run_comparison(whole, workload.make_batches(TINY, 2048), timing)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_ours_is_measured_when_a_peer_cannot_be_installed(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = environments.Peer(
        title="broken", module="none", environment="b", packages=(str(tmp_path / "no-such.whl"),)
    )
    monkeypatch.setitem(environments.PEERS, "broken", broken)
    systems = [
        comparison.System(title="embedps", peer=comparison.OURS),
        comparison.System(title="broken", peer="broken"),
    ]
    results = measure(systems, [case("embedps"), case("embedps", "adagrad"), case("broken")])
    assert list(results["not_measured"]) == ["broken"]
    assert "cannot be installed" in results["not_measured"]["broken"]
    assert "not measured: broken: cannot be installed" in capfd.readouterr().out
    sgd, adagrad = results["configurations"][0]["cases"]
    assert (sgd["kind"], adagrad["kind"]) == ("sgd", "adagrad")
    assert sgd["ours_to_this"]["median"] == 1
    for a, b in zip(sgd["rates"], adagrad["rates"], strict=True):
        assert adagrad["ours_to_this"]["min"] <= a / b * 1.01
        assert a > 0
    assert "numpy" in results["versions"]["embedps"]
    rates.plot([results], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.multiprocess
def test_another_case_begins_each_round_and_a_failing_peer_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Installed, by its stamp; its interpreter ends at once.
    folder = environments.cache() / "b"
    (folder / "bin").mkdir(parents=True)
    shutil.copy("/bin/false", folder / "bin" / "python")
    (folder / "installed").write_text("")
    dead = environments.Peer(title="dead", module="none", environment="b", packages=())
    monkeypatch.setitem(environments.PEERS, "dead", dead)
    order = []
    original = comparison._RunningSystems.measure

    def noted(running, its, secs):
        order.append(its.variant.kind)
        return original(running, its, secs)

    monkeypatch.setattr(comparison._RunningSystems, "measure", noted)
    systems = [
        comparison.System(title="embedps", peer=comparison.OURS),
        comparison.System(title="dead", peer="dead"),
    ]
    results = measure(systems, [case("embedps"), case("embedps", "adagrad"), case("dead")])
    assert order == ["sgd", "adagrad", "adagrad", "sgd"]
    assert results["not_measured"] == {"dead": "ended with code 1"}
    measured = results["configurations"][0]["cases"]
    assert [(x["system"], x["kind"]) for x in measured] == [
        ("embedps", "sgd"),
        ("embedps", "adagrad"),
    ]


def result(system, rates, ours, **variant):
    ratios = [a / b for a, b in zip(ours, rates, strict=True)]
    of_case = dataclasses.asdict(case(system, **variant).variant)
    return {
        "system": system,
        **of_case,
        "rate": report.spread(rates),
        "ours_to_this": report.spread(ratios),
    }


def test_a_table_compares_within_rounds_and_the_verdict_the_best():
    ours, theirs = [300e3, 100e3, 200e3], [100e3, 100e3, 50e3]
    comparison: dict[str, Any] = {
        "title": "t",
        "ours": "embedps",
        "not_measured": {},
        "configurations": [
            {
                "group": "Adagrad",
                "configuration": "float32 64",
                "cases": [
                    result("embedps", ours, ours, kind="rowwise_adagrad"),
                    result("peer", theirs, ours, kind="adagrad"),
                ],
            },
            {
                "group": "Adagrad",
                "configuration": "bfloat16 64",
                "cases": [
                    result("peer", [150e3] * 3, ours, kind="adagrad", precision="bfloat16"),
                ],
            },
        ],
    }
    columns, rows = rates.grid(comparison["configurations"])
    assert columns[1:] == ["float32 64", "bfloat16 64"]
    assert rows[0] == ["embedps, row-wise Adagrad", "200.0k", "-"]
    assert rows[1][1] == "100.0k  3.00x (1.00 to 4.00)"
    every, float32 = rates.verdicts(comparison)
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
    kinds = [
        x["kind"] for m in written["comparisons"] for r in m["configurations"] for x in r["cases"]
    ]
    assert kinds == ["sgd", "rowwise_adagrad", "adagrad"]
    assert (tmp_path / "lookup.png").exists()
    assert "row-wise Adagrad" in capfd.readouterr().out

"""The benchmark of attacks: what it sends is what it says, and it reports what came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.hostile import __main__ as hostile
from benchmarks.hostile import file_attacks, ids, run, server_attacks, tables, wire
from embedps.checkpoint.format.row_hashes import row_hashes
from embedps.console import command_line
from embedps.serving.server import messages

COLUMNS = run.columns(2)


def test_colliding_ids_differ_and_share_the_lowest_bits_of_their_hashes() -> None:
    made = ids.colliding("C1", 1000, shared_bits=48)
    hashes = row_hashes("C1", made)
    assert len(np.unique(made)) == 1000
    assert len(np.unique(hashes & np.uint64(2**48 - 1))) == 1


def test_inseparable_ids_are_of_one_stripe_and_share_all_bits_of_a_split() -> None:
    made = ids.inseparable("C1", 60_000)
    hashes = row_hashes("C1", made)
    assert len(np.unique(made)) == 60_000
    assert hashes.max() < 2**24
    assert (hashes & np.uint64(4095)).max() < 16


@pytest.mark.parametrize("name", ["grpc_no_token", "grpc_names", "router_ids"])
def test_the_twin_of_an_attack_is_a_request_of_its_size(name: str) -> None:
    sent: list[bytes] = []

    def call(address: str, data: bytes, **_: Any) -> str:
        sent.append(data)
        return "OK"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "call", call)
        attack = server_attacks.ATTACKS[name](COLUMNS, server_attacks.QUICK)
        target = server_attacks.Target(rest_port=0, grpc_address="x:0", secs=1, until=0)
        assert (attack.hostile(target), attack.harmless(target)) == ("OK", "OK")
    assert len(sent[1]) == pytest.approx(len(sent[0]), rel=0.01)
    asked = messages.PredictRequest.FromString(sent[1])
    assert set(asked.inputs) == set(COLUMNS)


def test_a_skipped_field_is_no_part_of_a_message() -> None:
    for size in (0, 1, 127, 128, 70_000):
        data = wire.predict_message({"a": np.zeros(2, np.int64)}, padding=size)
        asked = messages.PredictRequest.FromString(data)
        asked.DiscardUnknownFields()
        assert list(asked.inputs) == ["a"]
        assert len(data) - len(asked.SerializeToString()) >= size


def test_who_is_not_answered_and_who_dies_have_no_ratio() -> None:
    alive = {"cpu_secs": 0.0, "peak_bytes": 0, "p99_ms": 5.0, "ended_with": None}
    stalled = {**alive, "cpu_secs": 2.0, "p99_ms": None}
    found = tables.ratios({"quiet": alive, "harmless": alive, "hostile": stalled})
    assert found == {"cpu": 200, "peak": 1, "p99": None, "harmless_p99": 1}
    read = {"cpu_secs": 1.0, "peak_bytes": 2**30, "ended_with": 0}
    for code in (-6, None):  # it died, or never ended
        killed = {**read, "ended_with": code}
        found = tables.ratios({"harmless": read, "hostile": killed})
        assert found == {"cpu": None, "peak": None}


def test_an_unknown_attack_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.run(hostile.BENCHMARK.run, ["--only=none"]) == 2
    assert "but has none" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.multiprocess
def test_an_attack_on_a_server_and_one_by_a_file_are_reported(tmp_path: Path) -> None:
    output = tmp_path / "hostile.json"
    read = {"said": "counted", "cpu_secs": 1.0, "peak_bytes": 1, "ended_with": 0}
    ratios = {"cpu": 1.0, "peak": 1.0}
    before = {"sent_bytes": 8, "hostile": read, "ratios": ratios, "commit": "4241986"}
    output.write_text(json.dumps({"results": {"counters": before}}))
    attacks = "--only=rest_smuggling,manifest_name"
    flags = ["--quick", "--tables=2", "--secs=1", "--limit-secs=15", "--add", f"--output={output}"]
    assert command_line.run(hostile.BENCHMARK.run, [attacks, *flags]) == 0
    found = json.loads(output.read_text())["results"]
    assert list(found) == ["rest_smuggling", "counters", "manifest_name"]
    assert found["counters"] == before
    assert found["rest_smuggling"]["harmless"]["said"] == "200; 200"
    assert found["rest_smuggling"]["hostile"]["said"]
    assert found["rest_smuggling"]["hostile"]["probes_failed"] == 0
    assert found["rest_smuggling"]["ratios"]["p99"] > 0
    assert found["manifest_name"]["harmless"]["said"].startswith("manifest ")
    assert {"cpu_secs", "peak_bytes", "ended_with"} <= found["manifest_name"]["hostile"].keys()


def test_every_attack_can_be_made(tmp_path: Path) -> None:
    for make in server_attacks.ATTACKS.values():
        attack = make(COLUMNS, server_attacks.QUICK)
        assert attack.what
    assert set(hostile.ATTACKS) == {*server_attacks.ATTACKS, *file_attacks.ATTACKS}

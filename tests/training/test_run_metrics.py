"""What Prometheus reads of a run while it trains, and what the run logs as JSON."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import embedps
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.run.metrics_port import MetricsPort
from embedps.run.monitoring_config import MonitoringConfig
from tests.builders import dataset_fixture, make_trainer
from tests.commands import finish, processes_with, start, tf_config, train, until
from tools.reference_pages import declared_metrics

dataset = dataset_fixture(train=(700, 500))

RUN, TASK, ALL, _ = (set(found) for found in declared_metrics().values())
LABELS = {"table", "server", "kind", "cause", "le"}


class Scrape:
    """What was read of a port, as Prometheus reads it."""

    def __init__(self, port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        families = list(text_string_to_metric_families(text))
        self.names = {
            f.name + ("_total" if f.type == "counter" else "")
            for f in families
            if f.name.startswith("embedps_")
        }
        self._values = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }
        labelled = [s.labels for f in families if f.name != "embedps_info" for s in f.samples]
        self.labels = {name for labels in labelled for name in labels}

    def __getitem__(self, key: str | tuple[str, ...]) -> float:
        return self._values[(key,) if isinstance(key, str) else key]


class ScrapesAtSave(embedps.Callback):
    """Scrapes the run's port when a checkpoint is committed, as a stranger sends garbage."""

    port = 0

    def __init__(self) -> None:
        self.scrapes: list[Scrape] = []

    def on_checkpoint(self, run: Any, event: Any) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as stranger:
            stranger.sendall(b"\xff\x00 garbage\r\n\r\n")
        self.scrapes.append(Scrape(self.port))


def test_a_run_tells_its_numbers_and_ends_with_its_port(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = ScrapesAtSave()
    trainer = make_trainer(
        dataset,
        tmp_path / "m",
        metrics_port=0,
        stats_secs=1e-3,
        callbacks=[callback],
        max_memory_bytes=1 << 30,
        spill_dir=str(tmp_path / "spill"),
    )
    port = trainer._metrics.port  # type: ignore[union-attr]
    assert port is not None
    callback.port = port
    with pytest.raises(UsageError, match=rf"127.0.0.1:{port} must be .* give another --metrics-po"):
        make_trainer(dataset, tmp_path / "other", metrics_port=port)
    after_a_loss = MetricsPort(MonitoringConfig(metrics_port=port), is_needed=False)
    assert after_a_loss.port is None
    assert "warning: there are no metrics: 127.0.0.1:" in capsys.readouterr().out
    result = trainer.fit()
    assert result.finished
    found = callback.scrapes[-1]
    assert found["embedps_train_examples_total"] == result.examples == 1200
    assert found["embedps_train_units"] == found["embedps_train_units_done_total"]
    assert found["embedps_train_save_seconds_count", "base"] == 1
    assert found["embedps_train_checkpoint_step"] == found["embedps_train_steps_total"]
    assert found["embedps_train_unsaved_seconds"] == 0
    assert found["embedps_train_spill_rows_evicted_total"] == 0
    assert found["embedps_train_table_disk_rows", "C1"] == 0
    assert {*RUN, *ALL} > found.names
    assert {*RUN, *ALL} - found.names == {
        "embedps_train_waiting_files",
        "embedps_train_scored_step",
        "embedps_train_staleness_steps",
    }
    assert found.labels <= LABELS
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def events(lines: str) -> list[Mapping[str, str]]:
    found = [json.loads(line) for line in lines.splitlines()]
    assert all(set(each) == {"time", "level", "event"} for each in found)
    return found


def port_of(process: subprocess.Popen[str]) -> int:
    """Reads the log of a process up to the line of its port."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"metrics are at http://127\.0\.0\.1:(\d+)/metrics", line):
            events(line)
            return int(found[1])
    raise AssertionError(process.wait())


@pytest.mark.multiprocess
def test_a_server_tells_its_numbers_and_refuses_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as each:
        address = f"127.0.0.1:{each.getsockname()[1]}"
    config = tf_config({"chief": [address], "ps": [address], "worker": [address]}, "ps")
    flags = ("--log-format=json", "--metrics-port")
    server = start("embedps.server", *flags, "0", TF_CONFIG=config)
    try:
        port = port_of(server)
        found = Scrape(port)
        assert found.names == ALL  # it has had no client yet
        assert found["process_resident_memory_bytes"] > 0
        other = start("embedps.server", *flags, str(port), TF_CONFIG=config)
        _, err = other.communicate(timeout=60)
        assert other.returncode == UsageError.exit_code
        (line,) = events(err)
        assert line["level"] == "error"
        assert f"127.0.0.1:{port} must be an address of this machine" in line["event"]
    finally:
        server.kill()
        server.communicate()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_cluster_tells_its_numbers_at_the_clients_port(dataset: Dataset, tmp_path: Path) -> None:
    process = train(
        dataset,
        tmp_path / "m",
        "--num-ps=2",
        "--num-workers=2",
        "--epochs=1000000",
        "--stats-secs=0.2",
        "--delta-secs=1",
        "--eval=none",
        "--log-format=json",
        "--metrics-port=0",
        "--max-memory-bytes=1073741824",
        f"--spill-dir={tmp_path / 'spill'}",
    )
    port = port_of(process)

    not_here = {"embedps_train_waiting_files", "embedps_train_scored_step"}
    until(lambda: RUN - Scrape(port).names == not_here)
    found = Scrape(port)
    assert found.labels <= LABELS
    rows = [found["embedps_train_server_rows", server] for server in "01"]
    assert sum(rows) == sum(found["embedps_train_table_rows", t] for t in ("C1", "C2", "C3"))
    assert found["embedps_train_staleness_steps_count"] > 0
    (pid,) = processes_with(str(tmp_path / "m" / "logs" / "worker-1.log"))
    os.kill(pid, signal.SIGKILL)
    until(lambda: Scrape(port)["embedps_train_returned_workers_total"] == 1)
    assert Scrape(port)["embedps_train_lost_workers_total"] == 1
    process.send_signal(signal.SIGTERM)
    assert events(finish(process))[-1]["event"].startswith("stopped")

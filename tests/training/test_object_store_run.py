"""`--model-dir s3://...`: a run and its evaluator, as a user starts them, on an S3 server."""

import io
import json
import os
import re
import signal

import pyarrow.parquet as pq
import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.lease import read_leases
from embedps.storage.object_store import as_path
from tests.builders import write_dataset
from tests.checkpoint.readers import newest_of
from tests.commands import SMALL, finish, read_until, start
from tests.commands import checkpoint_command as checkpoint

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]


def test_run_in_a_bucket_is_scored_verified_and_resumed(s3_dir, tmp_path, capsys):
    dataset = write_dataset(tmp_path / "data", train=(4096,), evaluation=(1024,))
    where = (f"--data={dataset.directory}", f"--model-dir={s3_dir}", *SMALL)
    told = {"TMPDIR": str(tmp_path)}
    evicted = as_path(f"{s3_dir}-evicted")
    policies = ("--max-table-rows=16", f"--evicted-rows={evicted}")
    out = finish(
        start("embedps.train", *where, "--num-ps=2", "--delta-secs=0.5", *policies, **told)
    )
    assert re.search(r"done: (\d+)/\1 units, 4,096 examples", out), out
    directory = CheckpointDirectory(s3_dir)
    last = newest_of(directory)
    assert last.final
    assert last.num_shards == 2
    assert read_leases(directory) == []
    summary = json.loads((as_path(s3_dir) / "summary.json").read_text())
    groups = [each for each in evicted.iterdir() if each.is_dir()]
    files = [file for group in groups for save in group.iterdir() for file in save.iterdir()]
    rows = sum(pq.read_metadata(io.BytesIO(each.read_bytes())).num_rows for each in files)
    counted = sum(sum(causes.values()) for causes in summary["evicted"].values())
    assert rows == summary["evicted_rows"]["rows"] == counted > 0
    scores = [
        json.loads(x) for x in (as_path(s3_dir) / "evaluation.jsonl").read_text().splitlines()
    ]
    assert scores[-1]["step"] == last.step
    assert last.number - scores[-1]["number"] in (0, 1)  # then came a new base of the same rows
    assert scores[-1]["auc"] > 0.55
    assert str(tmp_path) in out  # where the logs are
    assert not (tmp_path / "s3:").exists()
    assert checkpoint(["verify", s3_dir, "--all"]) == 0
    assert "all as written" in capsys.readouterr().out

    # Another epoch, in one process, from what the two shards wrote.
    out = finish(start("embedps.train", *where, "--epochs=2", "--eval=none", **told))
    assert re.search(r"done: (\d+)/\1 units, 8,192 examples", out), out
    again = newest_of(directory)
    assert again.number > last.number
    finish(start("embedps.evaluate", f"--model-dir={s3_dir}", "--once", "--num-shards=3", **told))
    lines = (as_path(s3_dir) / "evaluation.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["number"] == again.number
    assert list(tmp_path.glob(f"embedps-{os.geteuid()}/**/logs/evaluator.log"))


def test_files_that_arrive_in_a_bucket_are_trained_once(s3_dir, tmp_path):
    dataset = write_dataset(tmp_path / "data", train=(1000,), evaluation=(500,))
    inbox = as_path(f"{s3_dir}/in")
    content = dataset.paths("eval")[0].read_bytes()
    for name in ("b.parquet", "day=1/a.parquet"):
        (inbox / name).write_bytes(content)
    (inbox / "text.parquet").write_bytes(b"no Parquet")
    (inbox / "_hidden.parquet").write_bytes(content)
    flags = (
        *(f"--data={dataset.directory}", f"--model-dir={tmp_path / 'm'}", *SMALL),
        *(f"--watch={inbox}", "--eval=none", "--num-ps=1", "--num-workers=2", "--delta-secs=0.2"),
        "--log-secs=0.1",
    )
    told = {"TMPDIR": str(tmp_path)}
    run = start("embedps.train", *flags, **told)
    # Told after a while without a change, however long the units take.
    seen = read_until(run, "units 4/4", "text.parquet is not trained: must be a Parquet file: ")
    assert "b.parquet: 500 examples, before training" in seen
    run.kill()
    run.communicate()
    (inbox / "c.parquet").write_bytes(content)
    run = start("embedps.train", *flags, **told)
    read_until(run, "units 5/5")
    run.send_signal(signal.SIGTERM)
    assert "run the same command again to resume: 5/5 units" in finish(run)
    last = newest_of(CheckpointDirectory(tmp_path / "m"))
    assert last.progress["examples"] == 1000 + 3 * 500
    assert last.ledger["watched"] == {"first_unit": 2, "in_progress": [], "left_out_rows": 0}

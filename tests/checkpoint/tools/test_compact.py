"""Compaction: the same rows bit for bit, beside writers, readers, collectors and kills."""

import os
import shutil
import signal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import SaveSet
from embedps.checkpoint.format.quantize import FLOAT32, Encoding
from embedps.checkpoint.format.rows import RowFile
from embedps.checkpoint.lease import hold_manifest, read_leases
from embedps.checkpoint.retention import KeepNewest, collect_garbage
from embedps.checkpoint.tools import compact as compact_module
from embedps.checkpoint.tools import replay
from embedps.checkpoint.tools.compact import compact
from embedps.checkpoint.tools.replay import make_partitions
from embedps.checkpoint.tools.verify import verify
from embedps.errors import CheckpointError, CorruptCheckpointError
from embedps.storage import file_io
from tests.checkpoint.builders import GROUP, CheckpointRun, Record, make_run, write_save
from tests.checkpoint.readers import newest_of, read_chain

NAN_BITS = np.array([0x7FC00123], np.uint32).view(np.float32)[0]
ids = st.integers(-4, 4)
values = st.one_of(st.none(), st.integers(-9, 9).map(float))
records = st.lists(st.builds(Record, st.sampled_from(["C1", "C2"]), ids, values), max_size=12)


def bits(rows: pa.Table) -> list:
    floats = [rows[n].combine_chunks().flatten().to_numpy() for n in ("embedding", "accumulator")]
    rest = [rows[n].to_pylist() for n in ("table", "id", "last_step", "frequency")]
    return [*(f.view(np.uint32).tolist() for f in floats), *rest]


def rows_of(directory: CheckpointDirectory, number: int | None = None) -> list:
    manifest = directory.latest() if number is None else directory.read(number)
    assert manifest is not None
    return bits(read_chain(directory, manifest, GROUP))


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    base=records, deltas=st.lists(records, min_size=1, max_size=4), keys=st.sampled_from([2, 99])
)
def test_compacted_chain_has_the_same_bits(tmp_path_factory, monkeypatch, base, deltas, keys):
    """Also with few keys sorted at a time, and an id twice in the base."""
    monkeypatch.setattr(replay, "MAX_KEYS", keys)
    run = CheckpointRun(tmp_path_factory.mktemp("chain"))
    run.base(base)
    for delta in deltas:
        run.delta(delta)
    before = rows_of(run.directory)
    made = compact(run.directory)
    assert made is not None
    newest = newest_of(run.directory)
    assert newest == made.manifest
    assert [s.kind for s in newest.chain] == ["base"]
    assert newest.chain[0].number == newest.save_number == 1 + len(deltas)
    assert rows_of(run.directory) == before == rows_of(run.directory, 1 + len(deltas))
    assert not verify(run.directory, run.directory.numbers()).problems
    assert compact(run.directory) is None


def test_id_twice_in_a_base_is_one_row_and_the_last(tmp_path):
    run = CheckpointRun(tmp_path)
    run.base([Record("C1", 1, 5.0), Record("C1", 2, 1.0), Record("C1", 1, 7.0)])
    rows = read_chain(run.directory, run.directory.read(1), GROUP)
    assert rows["id"].to_pylist() == [1, 2]
    assert rows["embedding"].to_pylist() == [[7.0, -7.0], [1.0, -1.0]]
    run.delta([Record("C1", 2, None)])
    made = compact(run.directory)
    assert made is not None
    assert made.base.rows == 1


def test_not_a_number_keeps_its_bits(tmp_path):
    run = CheckpointRun(tmp_path)
    run.base([Record("C1", 1, 1.0)])
    run.delta([Record("C1", 3, NAN_BITS)])
    before = rows_of(run.directory)
    assert int(np.array([NAN_BITS]).view(np.uint32)[0]) in before[0]
    assert compact(run.directory) is not None
    assert rows_of(run.directory) == before


ENCODINGS = [
    Encoding(rows="int8", optimizer_slots="bfloat16"),
    Encoding(rows="int4"),
    Encoding(optimizer_slots="bfloat16"),
]


def stored_rows(run: CheckpointRun, save: SaveSet) -> set[str]:
    """Every row's columns as the files have them: codes, scales and offsets."""
    files = [RowFile(run.directory.file(entry), decoded=False) for entry in save.files]
    rows = [row for file in files for batch in file.batches() for row in batch.to_pylist()]
    return {str(row) for row in rows if not row["removed"]}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_quantized_chain_keeps_its_encoding_codes_scales_and_offsets(tmp_path, encoding):
    run = CheckpointRun(tmp_path, encoding)
    values = [0.1, -3.7, 255.0, 1e-30, 7.0, 0.0]
    run.base([Record("C1", i, value) for i, value in enumerate(values)])
    run.delta([Record("C2", 3, NAN_BITS), Record("C1", 2, -0.3), Record("C1", 0, None)])
    run.delta([])
    read = set().union(*(stored_rows(run, save) for save in run.chain))
    before = rows_of(run.directory)
    made = compact(run.directory)
    assert made is not None
    assert {RowFile(run.directory.file(f)).encoding for f in made.base.files} == {encoding}
    kept = stored_rows(run, made.base)
    assert len(kept) == made.base.rows == len(values)
    assert kept <= read
    assert rows_of(run.directory) == before
    assert not verify(run.directory, run.directory.numbers()).problems


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_chain_of_several_encodings_becomes_the_floats_that_it_restores_to(tmp_path, encoding):
    run = CheckpointRun(tmp_path, encoding)
    run.base([Record("C1", i, i / 7) for i in range(9)])
    run.encoding = FLOAT32
    run.delta([Record("C1", 2, 0.3), Record("C2", 4, 0.1)])
    before = rows_of(run.directory)
    made = compact(run.directory)
    assert made is not None
    assert {RowFile(run.directory.file(f)).encoding for f in made.base.files} == {FLOAT32}
    assert rows_of(run.directory) == before


def test_shards_that_changed_along_the_chain_are_merged_into_one_file(tmp_path):
    run = make_run(tmp_path)
    save = write_save(run.directory, "delta", 4, [Record("C1", 0, 9.0)], num_shards=3, since=3)
    run.chain.append(save)
    assert len(make_partitions(run.directory, run.chain)) == 1
    assert len(make_partitions(run.directory, run.chain[:3])) == 2
    run.delta([])
    before = rows_of(run.directory)
    made = compact(run.directory)
    assert made is not None
    assert [file.path for file in made.base.files] == [f"base-5/{GROUP}/shard-0-of-1.arrow"]
    assert rows_of(run.directory) == before


def during(monkeypatch, action) -> None:
    """Runs `action` when a compaction has written its base and not committed it."""
    commit = compact_module._commit

    def act_and_commit(*args):
        action()
        return commit(*args)

    monkeypatch.setattr(compact_module, "_commit", act_and_commit)


def test_deltas_that_came_meanwhile_are_taken_over(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    during(monkeypatch, lambda: run.delta([Record("C1", 99, 9.0), Record("C1", 3, None)]))
    made = compact(run.directory)
    assert made is not None
    assert [(s.kind, s.number) for s in made.manifest.chain] == [("base", 3), ("delta", 4)]
    assert made.manifest.number == 5
    assert made.manifest.dense == run.directory.read(4).dense
    assert rows_of(run.directory) == rows_of(run.directory, 4)


def test_new_base_that_came_meanwhile_wins(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    during(monkeypatch, lambda: run.base([Record("C1", 99, 9.0)]))
    assert compact(run.directory) is None
    assert run.directory.numbers() == [1, 2, 3, 4]
    assert not (tmp_path / "compacting").exists()
    assert not (tmp_path / "base-3").exists()


def test_old_chain_goes_with_the_next_collection_unless_leased(tmp_path):
    run = make_run(tmp_path)
    assert hold_manifest(run.directory, "reader", 2, expire_secs=60)
    assert compact(run.directory) is not None
    assert [lease.name for lease in read_leases(run.directory)] == ["reader"]
    collect_garbage(run.directory, [KeepNewest(1)])
    # 3 too: by its delta the reader comes from 2 to where the new base is.
    assert run.directory.numbers() == [2, 3, 4]
    assert not verify(run.directory, run.directory.numbers()).problems
    (tmp_path / "leases" / "reader.json").unlink()
    collect_garbage(run.directory, [KeepNewest(1)])
    assert {p.name for _, p in run.directory.save_directories()} == {"base-3", "dense-3"}
    assert not verify(run.directory, run.directory.numbers()).problems


def test_collection_while_it_writes_takes_nothing_from_it(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    during(monkeypatch, lambda: collect_garbage(run.directory, [KeepNewest(1)]))
    assert compact(run.directory) is not None
    assert not verify(run.directory, run.directory.numbers()).problems


def test_damaged_chain_is_not_compacted(tmp_path):
    run = make_run(tmp_path)
    path = run.directory.file(run.directory.read(3).chain[1].files[0])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match=path.name):
        compact(run.directory)
    assert run.directory.numbers() == [1, 2, 3]


def test_two_compactions_at_once_are_refused(tmp_path, monkeypatch):
    run = make_run(tmp_path)

    def second():
        with pytest.raises(CheckpointError, match="another compaction runs"):
            compact(run.directory)

    during(monkeypatch, second)
    assert compact(run.directory) is not None


def test_empty_directory_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="holds no manifest"):
        compact(CheckpointDirectory(tmp_path))


@pytest.mark.slow
@pytest.mark.multiprocess
def test_compaction_killed_anywhere_leaves_the_chain_and_the_next_one_succeeds(tmp_path):
    """At every write, sync, rename and removal that a whole compaction does."""
    run = make_run(tmp_path / "chain")
    before = rows_of(run.directory)
    for count in range(1, 200):
        copy = tmp_path / str(count)
        shutil.copytree(run.directory.path, copy)
        directory = CheckpointDirectory(copy)
        pid = os.fork()
        if pid == 0:
            file_io.arm_fault(f"io.any:{count}")
            compact(directory)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert rows_of(directory) == before
        assert not verify(directory, directory.numbers()).problems
        if os.WIFEXITED(status):
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        made = compact(directory)
        assert made is not None or len(directory.numbers()) == 4  # it was killed after the commit
        assert rows_of(directory) == before
        collect_garbage(directory, [KeepNewest(1)])
        assert not verify(directory, directory.numbers()).problems
        shutil.rmtree(copy)
    assert count > 20

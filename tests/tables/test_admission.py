"""Which ids get a row, against the twin in plain Python; checkpoints hold the counters."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.admission import AdmissionFile
from embedps.checkpoint.policies import Consecutive
from embedps.checkpoint.retention import KeepNewest
from embedps.checkpoint.tools.compact import compact
from embedps.checkpoint.tools.verify import verify
from embedps.errors import CorruptCheckpointError, UsageError
from embedps.storage import file_io
from embedps.tables import SGD, Chance, FeatureSpec, MinCount, TableSpec, step_ops
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.row_files import StoredFile
from embedps.training.checkpoint_writer import CheckpointWriter
from tests.checkpoint.readers import newest_of
from tests.kernels.twins import initial_values
from tests.tables.admission_twin import AdmissionTwin, examples_of
from tests.tables.builders import ids, look, make_collection, make_table, ragged, remove, train

DIM = 2
POLICIES = {
    "count": MinCount(count=3),
    "expiring": MinCount(count=4, expire_steps=2048),
    "chance": Chance(probability=0.3),
}


def counted_table(policy, **fields) -> TableSpec:
    return make_table("t", DIM, admission=policy, optimizer=SGD(), **fields)


def counters_in(paths: Sequence[str | Path]) -> dict[tuple[str, int], tuple[int, int]]:
    """The counters of a reader that applies the files' records in order."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for path in paths:
        with pa.OSFile(str(path)) as file:
            for record in pa.ipc.open_file(file).read_all().to_pylist():
                key = record["table"], record["id"]
                if record["removed"]:
                    found.pop(key, None)
                else:
                    found[key] = record["count"], record["last_step"] // 1024
    return found


def counters_of(collection: EmbeddingCollection, folder: Path) -> dict:
    files = collection.files.write("copy", str(folder), since={})
    return counters_in([f.admission.path for f in files if f.admission is not None])


class Values:
    """The embeddings of a table's rows under SGD, and what its other ids read as."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.rows: dict[int, np.ndarray] = {}

    def admit(self, admitted: Iterable[int]) -> None:
        self.rows |= {i: initial_values(self.spec, [i])[0] for i in admitted}

    def read(self, id_: int) -> np.ndarray:
        if id_ in self.rows:
            return self.rows[id_]
        initial = initial_values(self.spec, [id_])[0]
        return initial if self.spec.absent == "initial" else np.zeros(DIM, np.float32)

    def update(self, shown: Iterable[int], learning_rate: float) -> None:
        """Applies a gradient of 1 for each time that an id is shown."""
        for i, times in Counter(shown).items():
            if i in self.rows:
                self.rows[i] = self.rows[i] - np.float32(learning_rate * times)


@pytest.mark.parametrize(
    ("name", "absent"),
    [("count", "zeros"), ("count", "initial"), ("expiring", "zeros"), ("chance", "initial")],
)
def test_steps_over_shared_tables_read_admit_and_learn_as_the_twin(tmp_path, name, absent):
    spec = counted_table(POLICIES[name], absent=absent, seed=3)
    features = [
        FeatureSpec(name="one", table="t"),
        FeatureSpec(name="many", table="t", ragged=True, combiner="sum"),
        FeatureSpec(name="other", table="u"),
    ]
    tables = [spec, make_table("u", DIM, optimizer=SGD())]
    collection = make_collection(tables, features, num_shards=3)
    twin, values, draw = AdmissionTwin(spec), Values(spec), random.Random(name)
    upstream = {f.name: np.ones((6, DIM), np.float32) for f in features}
    for k in range(40):
        one = [[int(40 * draw.random() ** 2)] for _ in range(6)]
        many = [[int(40 * draw.random() ** 2) for _ in range(draw.randint(0, 4))] for _ in range(6)]
        batch = {"one": ids(*(i for (i,) in one)), "many": ragged(many), "other": ids(*range(6))}
        values.admit(twin.step(examples_of([one, many]), 700 * k))
        expected = [
            [sum(map(values.read, lists), np.zeros(DIM)) for lists in f] for f in (one, many)
        ]
        found = train(collection, batch, upstream, learning_rate=0.25, step=700 * k)
        np.testing.assert_array_equal(found["one"], expected[0])
        np.testing.assert_allclose(found["many"], expected[1], rtol=1e-5, atol=1e-6)
        values.update((i for lists in (*one, *many) for i in lists), 0.25)
        if draw.random() < 0.3:
            gone = draw.sample(range(40), 5)
            remove(collection, "t", gone)
            twin.remove(gone)
            values.rows = {i: v for i, v in values.rows.items() if i not in gone}
        scored = look(collection, batch | {"one": ids(*range(40))})
        np.testing.assert_allclose(scored["one"], [*map(values.read, range(40))], rtol=1e-6)
    stats, admission = collection.stats(), collection.admission_stats()
    assert stats.rows["t"] == len(twin.rows)
    assert admission["t"].refused == stats.skipped_updates == twin.refused
    assert admission["u"].admitted == 0
    if isinstance(spec.admission, MinCount):
        counters = {("t", i): count for i, count in twin.counts.items()}
        assert counters_of(collection, tmp_path) == counters
        assert admission["t"].counters == len(counters)


def test_repeated_step_counts_once_and_a_step_cut_short_counts_nothing(tmp_path):
    collection = make_collection([counted_table(MinCount(count=4))])
    log = step_ops.step_log(container=collection.container, shared_name="steps")

    def attempt(number: int, *, ends: bool = True) -> None:
        step = tf.constant(number, tf.int64)
        found = collection.lookup({"t": ids(5)}, insert=True, step=step)
        if not ends:
            return
        collection.update_shard(
            0,
            0,
            found.asked[0][0]._replace(gradients=tf.ones([1, DIM])),
            learning_rate=tf.constant(0.5),
            step=step,
            is_new=step_ops.step_is_new(log, step),
        )
        zero = tf.constant(0, tf.int64)
        step_ops.step_applied(log, step, worker=zero, seen=zero)

    for number in (0, 0, 1, 0, 1):
        attempt(number)
        attempt(number + 10, ends=False)
    assert counters_of(collection, tmp_path) == {("t", 5): (2, 0)}


def test_table_without_admission_sends_and_counts_nothing():
    collection = make_collection([make_table("t", DIM)])
    found = collection.lookup({"t": ids(1, 2)}, insert=True)
    assert found.routed[0].shard_examples == []
    assert (found.asked[0][0].examples, found.asked[0][0].absent) == (None, None)
    scoring = make_collection([counted_table(MinCount(count=2))])
    assert scoring.lookup({"t": ids(1)}, insert=False).asked[0][0].absent is None


def test_training_lookup_without_a_step_is_refused():
    collection = make_collection([counted_table(MinCount(count=2))])
    with pytest.raises(UsageError, match=r"tables \['t'\], which have an admission, must have the"):
        collection.lookup({"t": ids(1)}, insert=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MinCount(count=1), r"count must be in \[2, 256\] but got 1"),
        (lambda: MinCount(count=257), r"count must be in \[2, 256\] but got 257"),
        (lambda: MinCount(count=2, expire_steps=-1), r"expire_steps must be in .* but got -1"),
        (lambda: Chance(probability=0.0), r"probability must be in \[2\^-32, 1\) but got 0.0"),
        (lambda: Chance(probability=1.0), r"but got 1.0"),
    ],
)
def test_wrong_policy_is_one_line(make, message):
    with pytest.raises(UsageError, match=message):
        make()


class Run:
    """A run that trains at random, saves, and is restored onto other numbers of shards."""

    def __init__(self, path: Path, seed: int) -> None:
        self.spec = counted_table(MinCount(count=4))
        self.twin = AdmissionTwin(self.spec)
        self.directory = CheckpointDirectory(path)
        self.draw = random.Random(seed)
        self.step = 0
        self.collection: EmbeddingCollection
        self.start()

    def start(self) -> None:
        """Starts a run from the newest checkpoint, on another number of shards."""
        self.collection = make_collection([self.spec], num_shards=self.draw.randint(1, 4))
        self.saver = CheckpointWriter(
            self.directory,
            self.collection,
            {"w": tf.Variable([1.0])},
            rebase=Consecutive(max_read_cost=1.5),
            keep=[KeepNewest(1)],
        )
        newest = self.directory.latest()
        if newest is not None:
            self.saver.restore(newest)

    def train(self) -> None:
        self.step += 1
        shown = [self.draw.randrange(60) for _ in range(20)]
        upstream = {"t": np.ones((20, DIM), np.float32)}
        train(self.collection, {"t": ids(*shown)}, upstream, step=self.step)
        self.twin.step(examples_of([[[i] for i in shown]]), self.step)
        gone = self.draw.sample(range(60), 2)
        remove(self.collection, "t", gone)
        self.twin.remove(gone)

    def save(self) -> None:
        self.saver.save(step=self.step, ledger={}, partially_applied=dict, progress={}, final=False)

    def check(self, folder: Path) -> None:
        found = counters_of(self.collection, folder)
        assert found == {("t", i): count for i, count in self.twin.counts.items()}
        assert self.collection.stats().rows["t"] == len(self.twin.rows)


def test_counters_survive_restarts_onto_other_shards_rebases_and_compactions(tmp_path):
    run = Run(tmp_path / "chain", 1)
    for k in range(12):
        for _ in range(run.draw.randint(1, 4)):
            run.train()
        run.save()
        if run.draw.random() < 0.3:
            compact(run.directory)
        if run.draw.random() < 0.6:
            run.saver.close()
            run.start()
            run.check(tmp_path / f"check-{k}")
    newest = newest_of(run.directory)
    assert newest.version == 3
    assert all(save.admission for save in newest.chain)
    assert verify(run.directory, run.directory.numbers()).problems == ()
    files = [run.directory.file(f) for save in newest.chain for f in save.admission]
    # Whoever has only Arrow reads the same counters, but for those of ids that have a row by now.
    stored = {i: c for (_, i), c in counters_in(files).items() if i not in run.twin.rows}
    assert stored == run.twin.counts
    assert [AdmissionFile(f).tables for f in files] == [["t"]] * len(files)


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_damaged_admission_file_is_named_and_not_restored(tmp_path, at):
    run = Run(tmp_path / "chain", 1)
    run.train()
    run.save()
    newest = newest_of(run.directory)
    path = run.directory.file(newest.chain[0].admission[0])
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 4
    path.write_bytes(content)
    (problem,) = verify(run.directory, [newest.number]).problems
    assert problem.path == str(path)
    with pytest.raises(CorruptCheckpointError, match=f"{path}.*xxh3_64"):
        run.start()


def test_compressed_counters_get_no_more_memory_than_a_batch_needs(tmp_path):
    run = Run(tmp_path / "chain", 1)
    run.train()
    run.save()
    newest = newest_of(run.directory)
    (group,) = {table["group"] for table in newest.tables}
    path = tmp_path / "counters.arrow"
    with pa.OSFile(str(run.directory.file(newest.chain[0].admission[0]))) as file:
        schema = pa.ipc.open_file(file).schema
    table = pa.table({name: [] for name in schema.names}, schema=schema)
    record = {"table": "t", "id": 7, "count": 2, "last_step": 0, "removed": False}
    for records, claimed in ((65_001, 0), (65_001, 1 << 40), (3_000_000, 0)):
        table = pa.Table.from_pylist([record] * 4096, schema).take(
            pa.array(np.arange(records) % 4096)
        )
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(str(path), schema, options=options) as writer:
            writer.write_table(table.combine_chunks(), max_chunksize=records)
        content = path.read_bytes()
        if claimed:
            own = np.int64(records * 8).tobytes()  # of the ids
            assert content.count(own) == 1
            path.write_bytes(content.replace(own, np.int64(claimed).tobytes()))
        size, checksum = file_io.checksum_file(path)
        files = {group: [StoredFile(str(path), size, checksum)]}
        if records == 65_001 and not claimed:
            assert run.collection.files.load_admission(files) == records
            continue
        with pytest.raises(CorruptCheckpointError, match=r"counters\.arrow"):
            run.collection.files.load_admission(files)


def test_delta_holds_the_counters_that_changed(tmp_path):
    run = Run(tmp_path / "chain", 1)
    many = np.arange(5000)
    upstream = {"t": np.ones((len(many), DIM), np.float32)}
    train(run.collection, {"t": ids(*many)}, upstream, step=1)
    run.save()
    train(run.collection, {"t": ids(7, 8)}, {"t": np.ones((2, DIM), np.float32)}, step=2)
    run.save()
    newest = newest_of(run.directory)
    assert [sum(f.rows for f in save.admission) for save in newest.chain][-1] == 2


def test_policy_may_change_on_resume(tmp_path):
    run = Run(tmp_path / "chain", 1)
    train(run.collection, {"t": ids(1, 2)}, {"t": np.ones((2, DIM), np.float32)}, step=1)
    run.save()
    for policy, rows in ((MinCount(count=2), 1), (Chance(probability=1 - 2**-32), 1), (None, 1)):
        run.spec = counted_table(policy)
        run.start()
        train(run.collection, {"t": ids(1)}, {"t": np.ones((1, DIM), np.float32)}, step=2)
        assert run.collection.stats().rows["t"] == rows

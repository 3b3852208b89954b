"""Diffs: equal to what two dictionaries differ in, whatever chains hold the rows."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.checkpoint.tools import diff as diff_module
from embedps.checkpoint.tools import replay
from embedps.checkpoint.tools.compact import compact
from embedps.checkpoint.tools.diff import diff
from embedps.errors import CorruptCheckpointError
from tests.checkpoint.builders import CheckpointRun, Record, make_run, row_batch

ids = st.integers(-4, 4)
values = st.one_of(st.none(), st.integers(-2, 2).map(float))
records = st.lists(st.builds(Record, st.sampled_from(["C1", "C2"]), ids, values), max_size=12)
Rows = dict[tuple[str, int], tuple]


def applied(rows: Rows, some: list[Record]) -> Rows:
    """The rows after some records, as `write_save` has them in two shards."""
    rows = dict(rows)
    for shard in range(2):
        mine = [record for record in some if record.id % 2 == shard]
        steps = row_batch(mine)["last_step"].to_pylist() if mine else []
        for record, step in zip(mine, steps, strict=True):
            if record.value is None:
                rows.pop((record.table, record.id), None)
            else:
                rows[record.table, record.id] = (record.value, step)
    return rows


def found(batches) -> dict[tuple[str, int], tuple]:
    rows: dict[tuple[str, int], tuple] = {}
    for batch in batches:
        assert batch.num_rows
        for row in batch.to_pylist():
            key = (row["table"], row["id"])
            assert key not in rows
            assert row["embedding"] == [row["embedding"][0], -row["embedding"][0]]
            rows[key] = (row["change"], row["embedding"][0], row["last_step"])
    return rows


def expected(before: Rows, after: Rows) -> dict[tuple[str, int], tuple]:
    changes = {k: ("removed", *v) for k, v in before.items() if k not in after}
    changes |= {k: ("added", *v) for k, v in after.items() if k not in before}
    return changes | {
        k: ("changed", *v) for k, v in after.items() if k in before and v != before[k]
    }


@settings(max_examples=25, deadline=None)
@given(
    saves=st.lists(st.tuples(records, st.booleans()), min_size=1, max_size=4),
    compacts=st.booleans(),
    data=st.data(),
)
def test_diff_is_that_of_two_dictionaries(tmp_path_factory, saves, compacts, data):
    """Over deltas, new bases and a compaction; in both directions."""
    run = CheckpointRun(tmp_path_factory.mktemp("chain"))
    states: list[Rows] = [{}]
    for some, is_base in saves:
        if is_base or len(states) == 1:
            run.base(some)
            states.append(applied({}, some))
        else:
            run.delta(some)
            states.append(applied(states[-1], some))
    numbers = run.directory.numbers()
    if compacts and compact(run.directory) is not None:
        numbers, states = [*numbers, numbers[-1] + 1], [*states, states[-1]]
    first, second = (data.draw(st.sampled_from(numbers)) for _ in range(2))
    keys, rows = data.draw(st.sampled_from([3, 99])), data.draw(st.sampled_from([2, 99]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "MAX_KEYS", keys)
        patch.setattr(diff_module, "_COMPARED_ROWS", rows)
        batches = diff(run.directory, run.directory.read(first), run.directory.read(second))
        assert found(batches) == expected(states[first], states[second])


def test_row_written_again_as_it_was_is_no_change(tmp_path):
    run = CheckpointRun(tmp_path)
    run.base([Record("C1", 2, 1.0), Record("C1", 4, 1.0)])
    run.delta([Record("C1", 2, 1.0), Record("C1", 4, 2.0)])
    (batch,) = diff(run.directory, run.directory.read(1), run.directory.read(2))
    assert batch["id"].to_pylist() == [4]
    assert batch.schema.names[:3] == ["change", "table", "id"]
    assert pa.types.is_dictionary(batch.schema.field("change").type)


def test_damaged_file_is_named(tmp_path):
    run = make_run(tmp_path)
    path = run.directory.file(run.directory.read(3).chain[2].files[0])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptCheckpointError, match=path.name):
        list(diff(run.directory, run.directory.read(1), run.directory.read(3)))

"""The unit reader inside functions that a ClusterCoordinator schedules onto another process."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands import run

NUM_ROWS = 5000


@pytest.mark.multiprocess
@pytest.mark.slow
def test_scheduled_units_are_read_by_the_worker_and_leave_no_reader(tmp_path):
    rows = np.arange(NUM_ROWS)
    table = pa.table({"row": rows, "tags": [[int(i)] * (i % 3) for i in rows]})
    file = tmp_path / "rows.parquet"
    pq.write_table(table, file, row_group_size=700)
    ranges = [(first, min(900, NUM_ROWS - first)) for first in range(0, NUM_ROWS, 900)]

    program = ("-m", "tests.kernels.unit_reader_cluster", file, json.dumps(ranges))
    found = json.loads(run(*program, timeout=120).stdout.splitlines()[-1])

    some = [rows[first : first + num] for first, num in ranges]
    assert found["totals"] == [int(x.sum() + (x * (x % 3)).sum()) for x in some]
    assert len(found["processes"]) == 1
    assert found["client"] not in found["processes"]
    assert found["live_readers"] == 0
    assert "absent.parquet" in found["error"]

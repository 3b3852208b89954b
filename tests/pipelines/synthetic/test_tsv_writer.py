"""Rows are written as plain formatting would write them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embedps.pipelines.synthetic.click_rows import MISSING_RANK, ClickRows
from embedps.pipelines.synthetic.tsv_writer import format_rows, hash_id

MAX_COUNT = 99_999_999
VALUES = st.one_of(
    st.integers(-MAX_COUNT, MAX_COUNT),
    st.sampled_from([0, 1, 9999, 10_000, 10_001, 100_000, MAX_COUNT, -1, -MAX_COUNT]),
)


@given(
    counts=st.lists(VALUES, min_size=13, max_size=13),
    missing=st.lists(st.booleans(), min_size=13, max_size=13),
    ranks=st.lists(st.integers(MISSING_RANK, 1 << 25), min_size=26, max_size=26),
    label=st.booleans(),
)
def test_line_equals_plain_formatting(
    counts: list[int], missing: list[bool], ranks: list[int], label: bool
):
    rows = ClickRows(
        counts=np.array(counts, np.int64)[:, None],
        count_missing=np.array(missing)[:, None],
        ranks=np.array(ranks, np.int64)[:, None],
    )
    fields = [str(int(label))]
    fields += ["" if m else str(c) for c, m in zip(counts, missing, strict=True)]
    for column, rank in enumerate(ranks):
        value = int(hash_id(column, np.array([rank]))[0])
        fields.append("" if rank == MISSING_RANK else f"{value:08x}")
    assert format_rows(np.array([label]), rows) == ("\t".join(fields) + "\n").encode()


def test_ids_are_distinct_within_a_column_and_differ_between_columns():
    ranks = np.arange(1 << 18)
    ids = [hash_id(column, ranks) for column in (0, 1)]
    assert all(len(np.unique(each)) == len(ranks) for each in ids)
    assert (ids[0] != ids[1]).all()

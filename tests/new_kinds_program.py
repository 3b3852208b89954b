"""Trains tables of the kinds that tests/new_kinds.py adds, in a copy of the tree that has them.

`python -m tests.new_kinds_program DIR` writes rows to DIR.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import embedps
from embedps.kernels import build
from embedps.tables import FeatureSpec, TableSpec
from tests.kernels.twins import mix64, table_salt
from tests.tables.builders import constant, ids, look, make_collection, make_table, ragged, rows_of
from tests.tables.builders import train as train_step

_NUM_IDS = 1000


def check_optimizer_eviction_and_combiner() -> None:
    """A row steps by the gradient's sign; of two rows, the one with one update goes."""
    table = make_table(
        embedding_dim=2,
        optimizer=embedps.Signum(momentum=0.5),  # type: ignore[attr-defined]
        initializer=constant(1.0),
        eviction=(embedps.MinUpdates(updates=2),),  # type: ignore[attr-defined]
    )
    assert TableSpec.from_config(table.to_json()) == table
    bags = FeatureSpec(name="bag", table="t", ragged=True, combiner="fourth_root")  # type: ignore[arg-type]
    collection = make_collection([table], [FeatureSpec(name="t", table="t")])
    train_step(collection, {"t": ids(1, 2)}, {"t": np.full([2, 2], 3.0)})
    train_step(collection, {"t": ids(1)}, {"t": np.full([1, 2], -9.0)}, step=2)
    np.testing.assert_array_equal(look(collection, {"t": ids(1, 2)})["t"], [[1, 1], [0.5, 0.5]])
    collection.sweep()
    np.testing.assert_array_equal(look(collection, {"t": ids(1, 2)})["t"], [[1, 1], [0, 0]])
    assert collection.eviction_stats()["t"]["rare"] == 1
    of_bags = make_collection([table], [bags])
    found = look(of_bags, {"bag": ragged([range(16), [1]])}, insert=True)["bag"]
    np.testing.assert_array_equal(found, [[8, 8], [1, 1]])


def check_admission(folder: Path) -> None:
    """An id gets a row if its hash is in the lower half."""
    table = make_table(admission=embedps.Share(share=0.5))  # type: ignore[attr-defined]
    assert TableSpec.from_config(table.to_json()) == table
    collection = make_collection([table])
    given = tf.range(_NUM_IDS, dtype=tf.int64)
    train_step(collection, {"t": given}, {"t": np.ones([_NUM_IDS, 4])})
    hashes = mix64(np.arange(_NUM_IDS, dtype=np.uint64) ^ table_salt("t")) >> np.uint64(32)
    admitted = np.flatnonzero(hashes < 2**31)
    assert {id_ for _, id_ in rows_of(collection, folder)} == set(admitted.tolist())


def main() -> None:
    """Checks each kind; the process ends with an error if one is not as declared."""
    root = Path(__file__).resolve().parents[1]
    assert root == build.ROOT, f"embedps is of {build.ROOT}, not of this copy {root}"
    check_optimizer_eviction_and_combiner()
    check_admission(Path(sys.argv[1]))


if __name__ == "__main__":
    main()

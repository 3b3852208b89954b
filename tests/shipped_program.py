"""Trains a DLRM on datasets, in each dtype, on one local cluster; for test_dlrm.py.

A program of its own: a coordinator changes its process's TensorFlow for good.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import embedps  # noqa: F401  chooses Keras 2 before TensorFlow's import
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset
from embedps.dtypes import COMPUTE_DTYPES
from embedps.models import dlrm
from tests import shipped
from tests.builders import TINY_DLRM, make_trainer


def main() -> None:
    """`shipped_program DIR EPOCHS`, the datasets' directories on stdin."""
    root, epochs = Path(sys.argv[1]), int(sys.argv[2])
    cluster = LocalCluster(num_ps=1, num_workers=1, log_dir=root / "logs")
    for line in sys.stdin:
        dataset = Dataset.open(line.strip())
        for compute_dtype in COMPUTE_DTYPES:
            trainer = make_trainer(
                dataset,
                root / f"{dataset.source}-{compute_dtype}",
                recommender=dlrm.make(replace(TINY_DLRM, compute_dtype=compute_dtype), dataset),
                cluster=cluster,
                epochs=epochs,
                **shipped.LEARN,
            )
            found = {"schema": dataset.source, "compute_dtype": compute_dtype}
            print(json.dumps({**found, "result": trainer.fit().summary}), flush=True)
    cluster.close()
    # Not the coordinator's teardown: it waits for servers that are gone.
    os._exit(0)


if __name__ == "__main__":
    main()

"""Loads an export as a program does that has TensorFlow and no embedps.

    python -I -S export_client.py SITE_PACKAGES EXPORT

It prints JSON: what loading takes above TensorFlow's own start, and the time of requests.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.append(sys.argv[1])

import numpy as np
import tensorflow as tf

SIZES, REPEATS = (1, 100, 1000), 100


def rss_bytes() -> int:
    """Returns the resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Loads, asks and prints."""
    path = Path(sys.argv[2])
    tf.zeros([1]).numpy()  # starts TensorFlow
    before, began = rss_bytes(), time.perf_counter()
    served = tf.saved_model.load(str(path))
    load_secs, loaded = time.perf_counter() - began, rss_bytes() - before
    files = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    score = served.signatures["serving_default"]
    rng = np.random.default_rng(1)
    cpu_ms = {}
    for rows in SIZES:
        given = {}
        for name, spec in score.structured_input_signature[1].items():
            values = rng.integers(0, 1000, rows) if spec.dtype.is_integer else rng.random(rows)
            given[name] = tf.constant(values, spec.dtype)
        for _ in range(5):
            score(**given)
        began = time.process_time()
        for _ in range(REPEATS):
            next(iter(score(**given).values())).numpy()
        cpu_ms[str(rows)] = round((time.process_time() - began) / REPEATS * 1e3, 2)
    print(
        json.dumps(
            {
                "load_secs": round(load_secs, 2),
                "load_memory_by_files": round(loaded / files, 3),
                "memory_after_requests_by_files": round((rss_bytes() - before) / files, 3),
                "files_mb": round(files / 1e6, 1),
                "request_cpu_ms": cpu_ms,
            }
        )
    )


main()

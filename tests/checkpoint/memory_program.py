"""Makes a chain, then does one thing with it and prints the memory that took, as JSON.

    python -m tests.checkpoint.memory_program make DIR NUM_ROWS
    python -m tests.checkpoint.memory_program diff|export|import|compact DIR

Memory is what the process has to itself: pages of mapped files are the system's to take.
"""

import json
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

from embedps import table
from embedps.checkpoint import __main__ as checkpoint
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import FileEntry, SaveKind, SaveSet
from embedps.checkpoint.tools import replay
from embedps.storage import file_io
from tests.checkpoint.builders import GROUP, make_manifest, row_schema

DIM, BATCH_ROWS = 64, 65536


def write(directory: CheckpointDirectory, kind: SaveKind, number: int, ids: np.ndarray) -> SaveSet:
    """A save of one file, of rows whose values are the number."""
    schema = row_schema(dim=DIM)
    path = directory.shard_path(kind, number, GROUP, 0, 1)
    with file_io.write_atomically(path) as file:
        with pa.ipc.new_file(file, schema) as writer:
            for first in range(0, len(ids), BATCH_ROWS):
                some = ids[first : first + BATCH_ROWS]
                n = len(some)
                floats = (np.full(n * w, number, np.float32) for w in (DIM, 1))
                embedding, accumulator = (
                    pa.FixedSizeListArray.from_arrays(pa.array(f), type=schema.field(name).type)
                    for f, name in zip(floats, ("embedding", "accumulator"), strict=True)
                )
                tables = pa.DictionaryArray.from_arrays(
                    pa.array(np.zeros(n, np.int16)), pa.array(["C1", "C2"])
                )
                steps = pa.array(np.full(n, number, np.uint32))
                arrays = [tables, pa.array(some), embedding, accumulator, steps, steps]
                arrays.append(pa.array(np.zeros(n, bool)))
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        entry = FileEntry.of(directory.relative(path), file.digest, rows=len(ids))
    since = number - 1 if kind == "delta" else None
    return SaveSet(kind=kind, number=number, step=number, since=since, files=(entry,))


def make(path: Path, num_rows: int) -> None:
    """A base and two deltas of a tenth each."""
    directory = CheckpointDirectory(path)
    ids = np.random.default_rng(0).permutation(num_rows).astype(np.int64)
    chain = [write(directory, "base", 1, ids)]
    directory.commit(make_manifest(1, chain))
    for number in (2, 3):
        some = ids[:: 10 + number]
        chain.append(write(directory, "delta", number, some))
        directory.commit(make_manifest(number, chain))


def own_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return 1024 * int(found[1]) if found else 0


def measured(arguments: list[str]) -> dict[str, int]:
    """Runs a command and watches how much more memory it takes than before."""
    replay.MAX_KEYS = 1 << 16
    before, most, ended = own_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.005):
            most = max(most, own_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    command = table if arguments[0] in ("export", "import") else checkpoint
    code = command.main(arguments)
    ended.set()
    watcher.join()
    return {"code": code, "bytes": max(most, own_bytes()) - before}


if __name__ == "__main__":
    what, directory = sys.argv[1], sys.argv[2]
    if what == "make":
        make(Path(directory), int(sys.argv[3]))
    else:
        more = {
            "compact": [],
            "export": ["--table", "C1", "--output", f"{directory}.npz"],
            "import": ["--table", "C2", "--input", f"{directory}.npz"],
            "diff": ["1", "3"],
        }
        print(json.dumps(measured([what, directory, *more[what]])))

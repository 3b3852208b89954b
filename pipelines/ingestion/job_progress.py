"""The progress of a job, from the progress files in its work directory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from embedps.console.progress import ProgressLine

from .ingest_job import IngestJob
from .input_files import InputTask

_POLL_SECS = 0.5
_POLL_TIMES = 50  # the pause is at least this many times as long as reading the files took


@contextlib.contextmanager
def progress_shown(job: IngestJob, inputs: Sequence[InputTask]) -> Iterator[None]:
    """Shows progress while the pipeline runs."""
    finished = threading.Event()
    total_bytes = sum(task.bytes for task in inputs)
    paths = [job.work.progress(f"{task.index:05d}") for task in inputs]
    shard_paths = [job.work.progress(f"{t.split}-{t.index:05d}") for t in job.shard_tasks]

    def watch() -> None:
        # Every row is parsed and later written: a parsed row counts as half done.
        with ProgressLine("parsing, then writing", 0, unit="rows") as line:
            pause = _POLL_SECS
            while not finished.wait(pause):
                began = time.monotonic()
                parsed = [numbers for path in paths if (numbers := _numbers_in(path))]
                num_bytes = sum(numbers[0] for numbers in parsed)
                rows = sum(numbers[1] for numbers in parsed)
                written = sum(sum(_numbers_in(path)) for path in shard_paths)
                total = rows if written else estimate_rows(rows, num_bytes, total_bytes)
                line.update((rows + written) // 2, total=total)
                # One file per input and shard: reading thousands of them slows the pipeline.
                pause = max(_POLL_SECS, _POLL_TIMES * (time.monotonic() - began))

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def estimate_rows(rows: int, num_bytes: int, total_bytes: int) -> int:
    """Estimates all rows from those of the bytes read so far; those, if no bytes are read yet."""
    return max(rows, round(rows * total_bytes / num_bytes)) if num_bytes else rows


def _numbers_in(path: Path) -> list[int]:
    try:
        return [int(number) for number in path.read_text().split()]
    except (OSError, ValueError):  # not there yet, or just being written
        return []

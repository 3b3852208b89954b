"""Clang finds a lock of the row store that is left out (`make thread-safety` checks the tree)."""

import re
from pathlib import Path

import pytest

from embedps.kernels import build
from tools import thread_safety

STORE = build.HERE / "store"
# Which of a source's locks is left out, and what Clang must say. It checks no destructors.
PLANTED = {
    "admission.cc": (0, "requires holding mutex 'stripe.mutex'"),
    "evicted_rows.cc": (1, "'current_' requires holding mutex 'mutex_'"),
    "page_pool.cc": (1, "'used_bytes_' requires holding mutex 'mutex_'"),
    "row_store.cc": (0, "'Row' requires holding mutex 'stripe.mutex'"),
    "row_updater.cc": (0, "'RowFinder' requires holding mutex 'stripe.mutex'"),
    "sweeper.cc": (1, "'held_' requires holding mutex 'mutex_'"),
    "table_eviction.cc": (1, "'WorstCandidate' requires holding mutex"),
    "table_scan.cc": (0, "'used' requires holding mutex 'stripe.mutex'"),
}
_LOCK = re.compile(r"^ *const MutexLock \w+\(&[^;]*\);\n", re.MULTILINE)
needs_clang = pytest.mark.skipif(
    not thread_safety.CLANG_TIDY.exists(), reason="no clang-tidy in the environment"
)


def planted(source: Path, number: int, folder: Path) -> Path:
    """Copies a source without one of its locks."""
    text = source.read_text()
    lock = list(_LOCK.finditer(text))[number]
    copy = folder / source.name
    copy.write_text(text[: lock.start()] + text[lock.end() :])
    return copy


def test_the_row_store_is_annotated():
    sources = {each.name for each in thread_safety.annotated_sources()}
    assert set(PLANTED) <= sources
    locking = {each.name for each in STORE.glob("*.cc") if _LOCK.search(each.read_text())}
    assert locking == set(PLANTED)
    for path in [*STORE.glob("*.h"), *STORE.glob("*.cc")]:
        if not path.name.endswith("_test.cc"):
            assert "std::mutex" not in path.read_text(), f"{path} has a mutex that nobody checks"


@needs_clang
@pytest.mark.parametrize("name", PLANTED)
def test_a_lock_that_is_left_out_is_found(name, tmp_path):
    number, fault = PLANTED[name]
    assert fault in thread_safety.faults(planted(STORE / name, number, tmp_path))


@needs_clang
def test_a_source_with_all_its_locks_passes():
    assert thread_safety.faults(STORE / "row_store.cc") == ""

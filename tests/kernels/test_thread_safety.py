"""Clang finds a lock of the kernels that is left out (`make thread-safety` checks the tree)."""

import re
from pathlib import Path

import pytest

from embedps.kernels import build
from tools import thread_safety

# Which of a file's locks is left out, and what Clang must say. It checks no destructors.
PLANTED = {
    "input/unit_reader.cc": (1, "'ready_' requires holding mutex 'mutex_'"),
    "runtime/bind_address.cc": (0, "'bind_address' requires holding mutex 'mutex'"),
    "runtime/call_steps.h": (0, "'next_' requires holding mutex 'mutex_'"),
    "runtime/step_gate.h": (0, "'Forget' requires holding mutex 'mutex_'"),
    "runtime/step_groups.h": (0, "'backup_workers_' requires holding mutex 'mutex_'"),
    "runtime/step_log.h": (0, "'HasLocked' requires holding mutex 'mutex_'"),
    "store/ahead_reader.h": (1, "'batches_' requires holding mutex 'mutex_'"),
    "store/admission.cc": (0, "requires holding mutex 'stripe.mutex'"),
    "store/evicted_rows.cc": (1, "'current_' requires holding mutex 'mutex_'"),
    "store/page_pool.cc": (1, "'used_bytes_' requires holding mutex 'mutex_'"),
    "store/read_pool.cc": (1, "'jobs_' requires holding mutex 'mutex_'"),
    "store/reads_under_way.h": (0, "'locations_' requires holding mutex 'mutex_'"),
    "store/row_store.cc": (4, "'Row' requires holding mutex 'stripe.mutex'"),
    "store/row_tier.cc": (2, "'image_slots_' requires holding mutex 'mutex_'"),
    "store/row_updater.cc": (0, "'RowFinder' requires holding mutex 'stripe.mutex'"),
    "store/body_arena.cc": (0, "'kept_' requires holding mutex 'mutex_'"),
    "store/server_memory.h": (0, "'num_stores_' requires holding mutex 'mutex_'"),
    "store/spill_log.cc": (0, "'ended_' requires holding mutex 'mutex_'"),
    "store/sweeper.cc": (1, "'held_' requires holding mutex 'mutex_'"),
    "store/tier_memory.h": (0, "'stores_' requires holding mutex 'mutex_'"),
    "store/tiered_rows.cc": (0, "'RowFinder' requires holding mutex 'stripe.mutex'"),
    "store/table_eviction.cc": (1, "'WorstCandidate' requires holding mutex"),
    "store/table_scan.cc": (0, "'used' requires holding mutex 'stripe.mutex'"),
}
# Of each kind of fault one: in a header, of a member, of a stripe.
QUICK = {"runtime/step_gate.h", "store/page_pool.cc", "store/row_store.cc"}
# Of templates, which their tests instantiate, of a local variable, and beside a lock of the caller.
ELSEWHERE = {
    "retrieval/item_index.cc",
    "runtime/group_sums.h",
    "runtime/step_sums.h",
    "store/tiered_rows.h",
}
_LOCK = re.compile(r"^ *const (?:embedps::)?MutexLock \w+\(&[^;]*\);\n", re.MULTILINE)
needs_clang = pytest.mark.skipif(
    not thread_safety.CLANG_TIDY.exists(), reason="no clang-tidy in the environment"
)


def planted(source: Path, number: int, folder: Path) -> Path:
    """Copies a file without one of its locks."""
    text = source.read_text()
    lock = list(_LOCK.finditer(text))[number]
    copy = folder / source.name
    copy.write_text(text[: lock.start()] + text[lock.end() :])
    return copy


def test_every_lock_of_the_kernels_is_one_that_clang_checks():
    locking = set()
    for path in [*build.HERE.glob("*/*.h"), *build.HERE.glob("*/*.cc")]:
        name, text = path.relative_to(build.HERE).as_posix(), path.read_text()
        if not name.endswith("_test.cc") and name != "runtime/mutex.h":
            assert "std::mutex" not in text, f"{name} has a mutex that nobody checks"
            if _LOCK.search(text):
                locking.add(name)
    assert locking == {*PLANTED, *ELSEWHERE}
    read = {str(path.relative_to(build.HERE)) for path in thread_safety.annotated_sources()}
    headers = {each for each in locking if each.startswith("store/") and each.endswith(".h")}
    assert locking - headers <= read  # which those of the store include


@needs_clang
@pytest.mark.parametrize(
    "name",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in PLANTED],
)
def test_a_lock_that_is_left_out_is_found(name, tmp_path):
    number, fault = PLANTED[name]
    assert fault in thread_safety.faults(planted(build.HERE / name, number, tmp_path))


@needs_clang
def test_a_source_with_all_its_locks_passes():
    assert thread_safety.faults(build.HERE / "store" / "row_store.cc") == ""

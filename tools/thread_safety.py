"""Checks the kernels' locks by Clang's analysis: `python -m tools.thread_safety [SOURCE...]`.

The annotations of `embedps/kernels/runtime/thread_annotations.h` say what a mutex guards, and which
functions need it. It reads what includes `mutex.h`. Clang is that of the environment's
clang-tidy; where there is none, it says so and fails nothing.
"""

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from embedps.kernels import build

CLANG_TIDY = Path(sys.executable).parent / "clang-tidy"
_MUTEX = build.HERE / "runtime" / "mutex.h"


def annotated_sources() -> list[Path]:
    """Lists what includes the mutex, directly or not, of the kernels without TensorFlow.

    An op has no lock of its own, and TensorFlow's headers take long. So the runtime's headers,
    which only ops include, are read by themselves, and its tests, which use its templates.
    """
    runtime = build.HERE / "runtime"
    sources = [*build.library_sources(), *runtime.glob("*.h"), *runtime.glob("*_test.cc")]
    return sorted(
        each for each in sources if each.parent.name != "ops" and _MUTEX in build.included(each)
    )


def faults(source: Path) -> str:
    """Returns what Clang says against a source, with the places; nothing if all is well."""
    command = [
        str(CLANG_TIDY),
        "--quiet",
        "--allow-no-checks",  # of clang-tidy's own; Clang's warnings have names like these
        "--checks=-*,clang-diagnostic-thread-safety*",
        "--warnings-as-errors=*",
        str(source),
        "--",
        *build.compile_flags(source),
        "-xc++",  # a header too
        "-Wthread-safety",
        "-Wno-unknown-warning-option",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def main() -> int:
    """Runs `python -m tools.thread_safety`."""
    parser = argparse.ArgumentParser(prog="python -m tools.thread_safety", description=__doc__)
    parser.add_argument("sources", nargs="*", type=Path, help="all that include the mutex, if none")
    sources = parser.parse_args().sources or annotated_sources()
    if not CLANG_TIDY.exists():
        print(f"skipped: no {CLANG_TIDY}; clang-tidy is in requirements.lock")
        return 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [each for each in pool.map(faults, sources) if each]
    print("\n".join([*found, f"thread safety: {len(sources)} sources, {len(found)} with faults"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

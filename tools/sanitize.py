"""Compiles every C++ test under each sanitizer and runs it: `python -m tools.sanitize [NAME...]`.

It links a test `x_test.cc` with the sources of every `embedps/...` header that the test includes,
directly or not, so tests need no list of sources. It runs nothing that includes TensorFlow.
"""

import argparse
import dataclasses
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from embedps.errors import KernelBuildError
from embedps.kernels import build

_INCLUDE = re.compile(r'^#include "(embedps/[^"]+)\.h"', re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sanitizer:
    """Compiler flags for the tests, and the environment to run them in."""

    name: str
    flags: tuple[str, ...]
    env: dict[str, str]


SANITIZERS = (
    Sanitizer(
        name="asan+ubsan",
        flags=("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
        env={
            "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:check_initialization_order=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
    ),
    Sanitizer(
        name="tsan",
        flags=("-fsanitize=thread",),
        env={"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"},
    ),
)


def linked_sources(test: Path) -> list[Path]:
    """Lists a test and the `.cc` beside each embedps header that it includes, directly or not."""
    found = [test]
    headers_seen: set[str] = set()
    unread = [test]
    while unread:
        for stem in _INCLUDE.findall(unread.pop().read_text()):
            if stem in headers_seen:
                continue
            headers_seen.add(stem)
            unread.append(build.ROOT / f"{stem}.h")
            source = build.ROOT / f"{stem}.cc"
            if source.exists():
                found.append(source)
                unread.append(source)
    return found


def compile_test(test: Path, sanitizer: Sanitizer, folder: Path, compiler: str) -> Path:
    """Compiles and links one test with its sources. Tests share the objects in `folder`."""
    objects = []
    arrow = False
    for source in linked_sources(test):
        target = folder / build.object_name(source)
        objects.append(str(target))
        arrow = arrow or build.uses_arrow(source)
        if target.exists():
            continue
        command = [compiler, *build.compile_flags(source), "-O1", "-g", "-fno-omit-frame-pointer"]
        subprocess.run(
            [*command, *sanitizer.flags, "-c", str(source), "-o", str(target)], check=True
        )
    program = folder / test.stem
    libraries = ["-pthread"]
    if arrow:
        libraries += [str(build.arrow_library(stem)) for stem in ("libparquet", "libarrow")]
        libraries += [f"-Wl,-rpath,{build.package_dir('pyarrow')}"]
    subprocess.run(
        [compiler, *sanitizer.flags, *objects, "-o", str(program), *libraries], check=True
    )
    return program


def run_test(program: Path, sanitizer: Sanitizer) -> bool:
    """Runs one test; shows its output only if it fails."""
    command = [str(program)]
    # TSan of GCC 12 cannot map its shadow under the address randomization of newer Linux kernels.
    setarch = shutil.which("setarch")
    if setarch:
        command = [setarch, platform.machine(), "--addr-no-randomize", *command]
    done = subprocess.run(
        command,
        cwd=build.ROOT,  # where the fuzz tests find their seeds
        # Arrow's own pools would hide its allocations from the sanitizer.
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", **sanitizer.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    passed = done.returncode == 0
    print(f"{sanitizer.name:12} {program.name:28} {'ok' if passed else f'exit {done.returncode}'}")
    if not passed:
        print(done.stdout, flush=True)
    return passed


def sanitize(tests: list[Path], sanitizer: Sanitizer, compiler: str) -> int:
    """Compiles and runs the tests under one sanitizer; returns how many failed."""
    with tempfile.TemporaryDirectory(prefix="embedps-sanitize-") as name:
        folder = Path(name)
        programs = [compile_test(test, sanitizer, folder, compiler) for test in tests]
        return sum(not run_test(program, sanitizer) for program in programs)


def main() -> int:
    """Returns 0 if every test passed under every sanitizer."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.sanitize", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as row_store_test")
    names = parser.parse_args().names
    tests = [
        test for test in sorted(build.HERE.glob("*/*_test.cc")) if not names or test.stem in names
    ]
    if not tests:
        print("tools.sanitize: no such C++ test", file=sys.stderr)
        return 2
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        print("tools.sanitize: needs g++ on the PATH, or CXX", file=sys.stderr)
        return 1
    try:
        # The builds of the two sanitizers share no objects: one core each.
        with ThreadPoolExecutor(len(SANITIZERS)) as pool:
            failed = sum(pool.map(lambda s: sanitize(tests, s, compiler), SANITIZERS))
    except KernelBuildError as error:
        print(f"tools.sanitize: {error}", file=sys.stderr)
        return error.exit_code
    except subprocess.CalledProcessError as error:
        print(f"tools.sanitize: exit {error.returncode}: {' '.join(error.cmd)}", file=sys.stderr)
        return 1
    num_runs = len(tests) * len(SANITIZERS)
    print(f"sanitize: {num_runs - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

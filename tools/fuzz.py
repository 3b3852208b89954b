"""Fuzzes the readers of external files: `python -m tools.fuzz --secs 600 [TARGET...]`.

The C++ targets are the *_fuzz_test.cc of embedps/kernels, built by clang with libFuzzer, ASan and
UBSan. The Python targets are in tools/fuzz_targets.py and run under atheris. Install both first:

    apt-get install clang-19 libclang-rt-19-dev; pip install atheris

The target `http` talks to a server in its own process. What takes over 8 GiB of addresses there, or
20 seconds for one input, is a finding too.

It starts from tests/fuzz_seeds and keeps its corpus in build/fuzz/corpus. Inputs that fail go to
build/fuzz/found. After a fix, copy them to tests/fuzz_seeds/<target>/found-...: the tests replay
these.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from embedps.kernels import build
from tools.fuzz_seeds import SEEDS
from tools.sanitize import linked_sources

WORK = build.ROOT / "build" / "fuzz"
_FLAGS = (
    "-DEMBEDPS_LIBFUZZER",
    "-fsanitize=fuzzer,address,undefined",
    "-Wno-unknown-warning-option",
)
_MAX_MB = 1100  # the readers limit a file's decoded pages to 1 GiB
_MAX_CRASHES = 8  # of a target, whose seconds are over then
_FOLDERS = {  # of the seeds
    "row_file_fuzz_test": "row_file",
    "admission_file_fuzz_test": "admission",
    "unit_reader_fuzz_test": "parquet",
    "predict_request_fuzz_test": "grpc",
    "json_request_fuzz_test": "json_request",
}


def build_target(test: Path, compiler: str) -> Path:
    """Compiles and links a C++ target."""
    folder = WORK / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    objects = []
    for source in linked_sources(test):
        target = folder / build.object_name(source)
        command = [compiler, *build.compile_flags(source), *_FLAGS, "-O1", "-g"]
        if not target.exists() or target.stat().st_mtime < _newest(source):
            subprocess.run([*command, "-c", str(source), "-o", str(target)], check=True)
        objects.append(str(target))
    libraries = [str(build.arrow_library(stem)) for stem in ("libparquet", "libarrow")]
    libraries += [f"-Wl,-rpath,{build.package_dir('pyarrow')}"]
    program = folder / test.stem
    subprocess.run([compiler, *_FLAGS, *objects, "-o", str(program), *libraries], check=True)
    return program


def _newest(source: Path) -> float:
    return max(path.stat().st_mtime for path in build.included(source))


def fuzz(name: str, command: list[str], folder: str, secs: int) -> bool:
    """Runs one target for `secs` seconds, also after it found something; prints a line.

    Returns:
      Whether it found nothing.
    """
    corpus, found = WORK / "corpus" / name, WORK / "found" / name
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    log, began, left = WORK / f"{name}.log", time.monotonic(), secs
    log.unlink(missing_ok=True)
    crashes = 0
    while left > 0 and crashes < _MAX_CRASHES:
        options = [
            f"-max_total_time={left}",
            f"-artifact_prefix={found}/",
            "-max_len=16384",
            "-timeout=20",
            "-print_final_stats=1",
        ]
        with open(log, "a") as out:
            done = subprocess.run(
                [*command, *options, str(corpus), str(SEEDS / folder)],
                env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
            )
        crashes += done.returncode != 0
        left = secs - round(time.monotonic() - began)
    text = log.read_text(errors="replace")
    runs = sum(map(int, re.findall(r"number_of_executed_units: *(\d+)", text)))
    reached = re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)", text) or [("?", "?")]
    outcome = f"{crashes} crashes: see {found} and {log}" if crashes else "no crash"
    print(
        f"{name:24} {runs:>10} runs in {time.monotonic() - began:.0f} s, "
        f"{reached[-1][0]} places reached by {reached[-1][1]} inputs: {outcome}",
        flush=True,
    )
    return crashes == 0


def main() -> int:
    """Returns 0 if no target found anything."""
    from tools.fuzz_targets import TARGETS

    parser = argparse.ArgumentParser(
        prog="python -m tools.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*_FOLDERS, *TARGETS]
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(names))
    parser.add_argument("--secs", type=int, default=600, help="seconds per target (default: 600)")
    options = parser.parse_args()
    chosen = options.targets or names
    compiler = shutil.which(os.environ.get("CLANGXX", "clang++-19")) or ""
    if unknown := sorted(set(chosen) - set(names)):
        print(f"tools.fuzz: no target {unknown}", file=sys.stderr)
        return 2
    if not compiler and not _FOLDERS.keys().isdisjoint(chosen):
        print("tools.fuzz: needs clang++-19 on the PATH, or CLANGXX", file=sys.stderr)
        return 2
    passed = True
    for name in chosen:
        if name in _FOLDERS:
            program = build_target(next(build.HERE.glob(f"*/{name}.cc")), compiler)
            limits = [f"-malloc_limit_mb={_MAX_MB}", "-rss_limit_mb=4096"]
            passed &= fuzz(name, [str(program), *limits], _FOLDERS[name], options.secs)
        else:
            command = [sys.executable, "-m", "tools.fuzz_python", name]
            passed &= fuzz(name, command, name, options.secs)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

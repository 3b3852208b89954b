"""What the fuzzers begin with and what they found, given to every reader again."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from embedps.checkpoint.format.manifest_json import from_json
from embedps.errors import CorruptCheckpointError
from embedps.kernels import build
from tools.fuzz_seeds import SEEDS
from tools.fuzz_targets import CHANGES, TARGETS, call
from tools.sanitize import linked_sources

CHANGES_PER_SEED = 20  # `python -m tools.fuzz` tries more


def seeds(folder: str) -> list[Path]:
    found = sorted((SEEDS / folder).iterdir())
    assert found
    return found


def changed(data: bytes, target: str, rng: random.Random) -> bytes:
    """With some values or bytes changed, and perhaps cut short."""
    if target in CHANGES and rng.random() < 0.7:
        return CHANGES[target](data, rng)
    some = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if some:
            some[rng.randrange(len(some))] = rng.randrange(256)
    return bytes(some[: rng.randrange(len(some) + 1)] if rng.random() < 0.3 else some)


@pytest.fixture(autouse=True)
def _twin_of_http(request: pytest.FixtureRequest) -> None:
    """The twin of the REST server comes with the server's packages."""
    if "http" in request.node.name:
        pytest.importorskip("h11")


@pytest.mark.parametrize("target", TARGETS)
def test_python_reader_reads_or_refuses_every_seed_and_its_changes(target):
    for path in seeds(target):
        data = path.read_bytes()
        call(TARGETS[target], data)
        rng = random.Random(data)
        for _ in range(CHANGES_PER_SEED):
            call(TARGETS[target], changed(data, target, rng))


@pytest.mark.parametrize("target", TARGETS)
def test_seed_that_is_no_finding_is_read(target):
    """A seed that were refused at its first byte would teach a fuzzer nothing."""
    for path in seeds(target):
        if not path.name.startswith("found-"):
            TARGETS[target](path.read_bytes())


@pytest.mark.parametrize(
    "path", sorted((SEEDS / "manifest").glob("found-*")), ids=lambda path: path.stem
)
def test_manifest_that_once_crashed_the_reader_is_refused(path):
    with pytest.raises(CorruptCheckpointError, match=path.name):
        from_json(path.read_bytes(), path)


@pytest.mark.parametrize(
    "name", [str(p.relative_to(build.HERE)) for p in sorted(build.HERE.glob("*/*_fuzz_test.cc"))]
)
def test_kernels_reader_reads_or_refuses_every_seed_and_its_changes(name, tmp_path):
    """Uses the kernels as built for use; `make sanitize` runs the test under the sanitizers."""
    if not (build.HERE / "_build").is_dir():
        pytest.skip("the kernels were built elsewhere, by Bazel, which runs these tests itself")
    build.build()
    source, *linked = linked_sources(build.HERE / name)
    objects = [str(build.HERE / "_build" / build.object_name(path)) for path in linked]
    program = tmp_path / source.stem
    libraries = [str(build.arrow_library(stem)) for stem in ("libparquet", "libarrow")]
    libraries += [f"-Wl,-rpath,{build.package_dir('pyarrow')}", "-pthread"]
    command = [os.environ.get("CXX", "g++"), *build.compile_flags(source), str(source), *objects]
    # The test itself need not be fast, but to compile.
    subprocess.run([*command, "-O0", "-o", str(program), *libraries], check=True)
    # A pattern fills new and freed memory, so a read of it shows.
    environment = {**os.environ, "MALLOC_PERTURB_": "165", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(
        [program],
        cwd=SEEDS.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "seeds" in done.stdout

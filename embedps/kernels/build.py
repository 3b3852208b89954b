"""Builds the C++ kernels against the headers of the installed TensorFlow and pyarrow wheels.

`python -m embedps.kernels.build` compiles changed sources. `pip install -e .` and the first import
of the kernels do the same. A digest over sources, flags and wheel versions identifies a build. So
nothing is compiled twice, and a new major version of pyarrow never meets an old library.
"""

import concurrent.futures
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from embedps.console import command_line
from embedps.errors import KernelBuildError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIBRARY = HERE / "_embedps.so"
_STAMP = HERE / "_build" / "digest"
_INCLUDE = re.compile(r'^\s*#\s*include\s+"(embedps/[^"]+)"', re.MULTILINE)
_COMMON_FLAGS = (
    "-O3",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wno-sign-compare",
    "-Wno-restrict",  # GCC 12 warns wrongly of std::string + (GCC bug 105651)
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    "-DEIGEN_MAX_ALIGN_BYTES=64",
)


def library_sources() -> list[Path]:
    """Lists the sources of the library: every .cc of the rooms except tests."""
    return sorted(p for p in HERE.glob("*/*.cc") if not p.name.endswith("_test.cc"))


def headers() -> list[Path]:
    """Lists the headers of all rooms."""
    return sorted(HERE.glob("*/*.h"))


def uses_arrow(source: Path) -> bool:
    """Tells whether a source includes Arrow's headers: these need C++20, TensorFlow's C++17."""
    text = source.read_text()
    return "#include <arrow/" in text or "#include <parquet/" in text


def package_dir(name: str) -> Path:
    """Finds the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise KernelBuildError(
            f"building the kernels needs the {name} package, which is not installed: "
            f"run `make env`, or `pip install {name}`"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def arrow_library(stem: str) -> Path:
    """Finds a shared library of the pyarrow wheel; its name ends with the major version."""
    found = sorted(package_dir("pyarrow").glob(f"{stem}.so.*"))
    if not found:
        raise KernelBuildError(f"the pyarrow wheel has no {stem}.so.*: reinstall pyarrow")
    return found[0]


def compile_flags(source: Path) -> list[str]:
    """Returns the compiler's flags for one source of the library."""
    if uses_arrow(source):
        includes = ["-std=c++20", "-isystem", str(package_dir("pyarrow") / "include")]
    else:
        includes = ["-std=c++17", "-isystem", str(package_dir("tensorflow") / "include")]
    return [*_COMMON_FLAGS, *includes, "-I", str(ROOT)]


def link_flags() -> list[str]:
    """Returns the linker's flags; they also say where to find the wheels' libraries at run time."""
    tensorflow = package_dir("tensorflow")
    pyarrow = package_dir("pyarrow")
    return [
        str(tensorflow / "libtensorflow_framework.so.2"),
        str(arrow_library("libparquet")),
        str(arrow_library("libarrow")),
        # First site-packages beside an installed embedps, then the environment that built it.
        "-Wl,-rpath,$ORIGIN/../../tensorflow:$ORIGIN/../../pyarrow",
        f"-Wl,-rpath,{tensorflow}:{pyarrow}",
        "-pthread",
    ]


def _compiler() -> str:
    name = os.environ.get("CXX", "g++")
    found = shutil.which(name)
    if found is None:
        raise KernelBuildError(
            f"building the kernels needs a C++20 compiler, and {name!r} is not on the PATH: "
            "install g++ 11 or newer (Debian: apt-get install g++), or set CXX"
        )
    return found


def digest() -> str:
    """Computes the digest of sources, flags and wheel versions."""
    h = hashlib.sha256()
    for path in sorted([*headers(), *library_sources(), Path(__file__)]):
        h.update(path.relative_to(HERE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    h.update(_wheels().encode())
    return h.hexdigest()


def _wheels() -> str:
    """Names the platform and the wheels whose headers the kernels include."""
    names = ("tensorflow", "pyarrow")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    return "\n".join([*versions, sys.platform])


def included(source: Path) -> list[Path]:
    """Lists a source and the headers of all rooms that it includes, directly or by others."""
    found, new = set(), {source}
    while new:
        found |= new
        names = {name for path in new for name in _INCLUDE.findall(path.read_text())}
        new = {path for name in names if (path := ROOT / name).exists()} - found
    return sorted(found)


def _file_digest(source: Path, command: list[str]) -> str:
    """Computes the digest of one source, its headers, the command and the wheels' versions.

    The command counts without the checkout's own folder: a copied checkout keeps its objects.
    """
    h = hashlib.sha256(f"{repr(command).replace(str(ROOT), '')}\0{_wheels()}\0".encode())
    for path in included(source):
        h.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()


def object_name(source: Path) -> str:
    """Names a source's object file; two rooms may have sources of one name."""
    return "-".join(source.relative_to(HERE).with_suffix(".o").parts)


def _compile(source: Path, folder: Path, compiler: str) -> Path:
    target = folder / object_name(source)
    stamp = target.with_suffix(".digest")
    command = [compiler, *compile_flags(source), "-c", str(source), "-o", str(target)]
    wanted = _file_digest(source, command)
    if target.exists() and stamp.exists() and stamp.read_text() == wanted:
        return target
    stamp.unlink(missing_ok=True)
    _run(command, f"compile {source.name}")
    stamp.write_text(wanted)
    return target


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KernelBuildError(
            f"could not {what} (exit {done.returncode}): {' '.join(command)}\n{done.stderr}"
        )
    if done.stderr:
        sys.stderr.write(done.stderr)


def is_current() -> bool:
    """Tells whether the library on disk was built from these sources and wheels."""
    return LIBRARY.exists() and _STAMP.exists() and _STAMP.read_text() == digest()


def build(*, verbose: bool = False) -> Path:
    """Builds the kernels if they are stale. Several processes may call it at once.

    Args:
      verbose: print to stderr what it builds.

    Returns:
      The path of the shared library.

    Raises:
      KernelBuildError: the compiler, TensorFlow or pyarrow is missing, or a source does not
        compile.
    """
    if is_current():
        return LIBRARY
    compiler = _compiler()
    folder = _STAMP.parent
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise KernelBuildError(
            f"the kernels in {HERE} are stale and the folder cannot be written ({error}): "
            "reinstall embedps"
        ) from error
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current():
            return LIBRARY
        wanted = digest()
        sources = library_sources()
        if verbose:
            print(f"embedps: building {len(sources)} kernel sources", file=sys.stderr, flush=True)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda s: _compile(s, folder, compiler), sources))
        partial = folder / LIBRARY.name
        command = [compiler, "-shared", "-o", str(partial), *map(str, objects), *link_flags()]
        _run(command, "link the kernels")
        os.replace(partial, LIBRARY)
        _STAMP.write_text(wanted)
    return LIBRARY


def main(arguments: Sequence[str]) -> int:
    """Runs `python -m embedps.kernels.build`."""
    command_line.Parser(prog="python -m embedps.kernels.build", description=__doc__).parse_args(
        arguments
    )
    print(build(verbose=True))
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

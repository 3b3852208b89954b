"""Runs pytest inside a Bazel test: `bazel_pytest.py LIBRARY unit|first|multiprocess PATH...`.

It uses LIBRARY, the kernels that Bazel built, so embedps does not build them itself. `first` runs
the first unit test of each file: it shows that BUILD names what the file needs.
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from embedps.kernels import build


class FirstOfFile:
    """A plugin that keeps the first test of each file."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Drops the others, of those that the markers leave."""
        first = {item.path: item for item in reversed(items)}
        items[:] = [item for item in items if first[item.path] is item]


def main() -> int:
    """Returns pytest's exit code."""
    library, kind, *paths = sys.argv[1:]
    markers = "multiprocess or slow" if kind == "multiprocess" else "not multiprocess and not slow"
    built = Path(library).absolute()
    build.build = lambda *, verbose=False: built
    # Bazel's TEST_TMPDIR is so long that a path in it fills a line of output.
    with tempfile.TemporaryDirectory(prefix="embedps-", dir="/tmp") as scratch:
        code = pytest.main(
            [
                "--config-file=pyproject.toml",
                "-pno:cacheprovider",
                f"-m{markers}",
                f"--basetemp={scratch}/pytest",
                f"--junitxml={os.environ['XML_OUTPUT_FILE']}",
                *paths,
            ],
            plugins=[FirstOfFile()] if kind == "first" else [],
        )
    # A folder may have only tests of the other kind.
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


if __name__ == "__main__":
    sys.exit(main())

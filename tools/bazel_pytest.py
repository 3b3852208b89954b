"""Runs pytest inside a Bazel test: `bazel_pytest.py LIBRARY unit|multiprocess PATH...`.

It uses LIBRARY, the kernels that Bazel built, so embedps does not build them itself.
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from embedps.kernels import build


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
            ]
        )
    # A folder may have only tests of the other kind.
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


if __name__ == "__main__":
    sys.exit(main())

"""The repository @wheels: what the kernels are built against, and the Python that runs the tests.

It asks the interpreter named by PYTHON_BIN_PATH, and asks again when that or EMBEDPS_WHEELS (any
text that changes with the installed packages; `make bazel` gives the lock file's digest) changes.
"""

# Finds the packages without importing them: importing TensorFlow takes seconds.
_FIND_PACKAGES = """
import importlib.util, pathlib, sys
for name in ("tensorflow", "pyarrow"):
    spec = importlib.util.find_spec(name)
    if spec is None:
        sys.exit(name + " is not installed: run `make env`")
    print(pathlib.Path(spec.origin).parent)
for stem in ("libparquet", "libarrow"):
    print(next(iter(sorted(pathlib.Path(spec.origin).parent.glob(stem + ".so.*")))))
"""

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")
load("@rules_python//python:py_runtime.bzl", "py_runtime")
load("@rules_python//python:py_runtime_pair.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "tensorflow",
    hdrs = glob(["tensorflow/**"]),
    includes = ["tensorflow"],
    linkopts = ["{tensorflow}/libtensorflow_framework.so.2", "-Wl,-rpath,{tensorflow}"],
)

cc_library(
    name = "arrow",
    hdrs = glob(["pyarrow/**"]),
    includes = ["pyarrow"],
    linkopts = ["{libparquet}", "{libarrow}", "-Wl,-rpath,{pyarrow}"],
)

py_runtime(
    name = "python",
    interpreter_path = "{python}",
    python_version = "PY3",
)

py_runtime_pair(
    name = "python_pair",
    py3_runtime = ":python",
)

toolchain(
    name = "python_toolchain",
    toolchain = ":python_pair",
    toolchain_type = "@rules_python//python:toolchain_type",
)
"""

def _wheels_repository_impl(ctx):
    python = ctx.os.environ.get("PYTHON_BIN_PATH", "")
    if not python:
        fail("PYTHON_BIN_PATH must name the Python of the environment: run `make bazel`, " +
             "or give --repo_env=PYTHON_BIN_PATH=$PWD/.venv/bin/python")
    found = ctx.execute([python, "-c", _FIND_PACKAGES])
    if found.return_code != 0:
        fail("%s cannot find the packages to build against: %s" % (python, found.stderr))
    tensorflow, pyarrow, libparquet, libarrow = found.stdout.strip().split("\n")
    ctx.symlink(tensorflow + "/include", "tensorflow")
    ctx.symlink(pyarrow + "/include", "pyarrow")
    ctx.file("BUILD", _BUILD.format(
        tensorflow = tensorflow,
        pyarrow = pyarrow,
        libparquet = libparquet,
        libarrow = libarrow,
        python = python,
    ))

wheels_repository = repository_rule(
    implementation = _wheels_repository_impl,
    environ = ["PYTHON_BIN_PATH", "EMBEDPS_WHEELS"],
)

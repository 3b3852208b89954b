"""Makes TensorFlow's first import quiet, and keeps AutoGraph's files out of the temporary folder.

It also spares AutoGraph most of our functions, so that training starts seconds sooner.
`import embedps` prepares this, whether a command, a script or a user's model then imports
TensorFlow. Set TF_CPP_MIN_LOG_LEVEL to 0 or 1 to see its startup log.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import linecache
import os
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# A C++ log line that is not fatal, and the text that comes with such lines.
_STARTUP_LINE = re.compile(
    rb"[IWE]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    rb"|WARNING: All log messages before absl::|To enable the following instructions:"
)
_generated = itertools.count(1)
# Rooms whose functions neither branch nor loop on a tensor, and call no function of a user.
# AutoGraph would take 3 s of a core to convert them, once per process, and slow each trace.
_UNCONVERTED = (
    "embedps.data",
    "embedps.engine.steps.unit_parts",
    "embedps.layers.dense",
    "embedps.layers.keras_ids",
    "embedps.layers.passed_ids",
    "embedps.layers.stock_ops",
    "embedps.metrics",
    "embedps.tables",
)


def prepare_first_import(before_servers: Callable[[], None]) -> None:
    """Has TensorFlow prepared at its first import, or now if it was imported already.

    Args:
      before_servers: is called before a tf.distribute.Server starts.
    """
    loaded = sys.modules.get("tensorflow")
    if loaded is not None:
        with _without_startup_log():
            _prepare(loaded, before_servers)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(before_servers))


def import_runtime() -> None:
    """Imports TensorFlow's C++ runtime without its Python API, for a process that only serves.

    The API takes some 3 s of a core to import. A server calls none of it: its client sends graphs.
    Afterwards `import tensorflow` gives an empty package, whose submodules can be imported. This
    does nothing if TensorFlow was imported before.
    """
    if "tensorflow" in sys.modules:
        return
    spec = importlib.machinery.PathFinder.find_spec("tensorflow")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
    # With its spec: who builds the kernels finds TensorFlow's headers by it.
    sys.modules["tensorflow"] = importlib.util.module_from_spec(spec)
    with _without_startup_log():
        from tensorflow.python import pywrap_tfe, tf2

        tf2.enable()  # as the API's own import does; the runtime asks for it too
        pywrap_tfe.TF_ListPhysicalDevices()  # it logs too


class _Finder(importlib.abc.MetaPathFinder):
    """Finds TensorFlow and makes its loader quiet."""

    def __init__(self, before_servers: Callable[[], None]) -> None:
        self._before_servers = before_servers

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "tensorflow":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_quietly(module: types.ModuleType) -> None:
            with _without_startup_log():
                load(module)
                _prepare(module, self._before_servers)

        spec.loader.exec_module = load_quietly  # type: ignore[method-assign]
        return spec


def _prepare(tensorflow: types.ModuleType, before_servers: Callable[[], None]) -> None:
    """Tells AutoGraph what to leave, and where to keep its code; lists the devices, which logs.

    Makes a tf.distribute.Server call `before_servers` first, and a ParameterServerStrategy connect
    without the evaluator of TF_CONFIG: it would wait for ever for it to serve.
    """
    from tensorflow.python.autograph.core import config
    from tensorflow.python.autograph.pyct import loader

    ours = tuple(config.DoNotConvert(room) for room in _UNCONVERTED)
    config.CONVERSION_RULES = ours + config.CONVERSION_RULES
    loader.load_source = _load_source
    tensorflow.config.list_physical_devices()
    server = tensorflow.distribute.Server
    start = server.__init__

    def start_prepared(self: Any, *args: Any, **kwargs: Any) -> None:
        before_servers()
        start(self, *args, **kwargs)

    server.__init__ = start_prepared
    strategy = tensorflow.distribute.ParameterServerStrategy
    connect = strategy._connect_to_cluster

    def connect_to_servers(self: Any, *args: Any, **kwargs: Any) -> None:
        resolver = self._cluster_resolver
        spec = resolver.cluster_spec().as_dict()
        if spec.pop("evaluator", None):
            self._cluster_resolver = tensorflow.distribute.cluster_resolver.SimpleClusterResolver(
                tensorflow.train.ClusterSpec(spec),
                task_type=resolver.task_type,
                task_id=resolver.task_id,
                rpc_layer=resolver.rpc_layer,
            )
        connect(self, *args, **kwargs)

    strategy._connect_to_cluster = connect_to_servers


def _load_source(source: str, delete_on_exit: bool) -> tuple[types.ModuleType, str]:
    """Replaces AutoGraph's function that loads generated code: it writes no file.

    A process that is killed, or ends by os._exit as ours do, would leave that file. `linecache`
    gets the code's lines, so that tracebacks and `inspect` still show them.
    """
    name = f"__autograph_generated_{next(_generated)}"
    path = f"<{name}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module = types.ModuleType(name)
    module.__file__ = path
    exec(compile(source, path, "exec"), module.__dict__)
    sys.modules[name] = module
    return module, path


@contextmanager
def _without_startup_log() -> Iterator[None]:
    """Holds back stderr during the block, then prints it without TensorFlow's startup log.

    TensorFlow logs these lines before it reads any log level. If the block fails, all is printed.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") in ("0", "1"):
        yield
        return
    try:
        kept = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    failed = True
    with tempfile.TemporaryFile() as aside:
        _flush_stderr()
        os.dup2(aside.fileno(), 2)
        try:
            yield
            failed = False
        finally:
            _flush_stderr()
            os.dup2(kept, 2)
            aside.seek(0)
            for line in aside:
                if failed or not _STARTUP_LINE.match(line):
                    os.write(kept, line)
            os.close(kept)


def _flush_stderr() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()

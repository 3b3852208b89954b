"""Serves as one worker or parameter server of a cluster: `embedps server`.

TF_CONFIG names the cluster and this server's task in it. The server serves one client after the
other until it is told to end. SIGTERM gives notice: the client polls for it, lets a worker finish
its unit, saves a checkpoint and then releases the server. The server waits for its release for
--grace-secs at most. A server of a local cluster also ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from embedps import config_fields, kernels
from embedps.cluster.bind_address import check_listening, listen_at
from embedps.config_fields import MAX_SECS, option, section
from embedps.console import command_line, flags, tf_startup
from embedps.console.child_process import end_with_parent
from embedps.console.lines import log_as, say
from embedps.errors import ClusterError, UsageError
from embedps.run.config import TrainConfig
from embedps.run.monitoring_config import MonitoringConfig
from embedps.run.tf_config import FIRST_TASK, read_tf_config

_CLIENT_SECS = 5.0  # a client that has not asked for this long is gone
_TICK_SECS = 0.1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of malloc.h


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The options that a server shares with `embedps train`."""

    grace_secs: float = option(
        TrainConfig.grace_secs, "seconds from SIGTERM to the end", above=0, most=MAX_SECS
    )

    monitoring: MonitoringConfig = section(MonitoringConfig)

    def __post_init__(self) -> None:
        config_fields.check(self)


def serve(config: ServerConfig) -> NoReturn:
    """Serves as the task that TF_CONFIG names, until it is told to end.

    Args:
      config: how long it then waits for its client to release it.

    Raises:
      UsageError: TF_CONFIG is absent, names no worker or ps, or a wildcard for this task; or the
        port of metrics cannot be had.
      ClusterError: its address cannot be bound.
    """
    log_as(config.monitoring.log_format)
    found = read_tf_config()
    if found is None:
        raise UsageError("a server must be told its task by TF_CONFIG, which is not set")
    task, cluster = found["task"], found["cluster"]
    if task["type"] not in ("worker", "ps"):
        raise UsageError(f"a server's task must be worker or ps but TF_CONFIG has {task['type']!r}")
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    end_with_parent()
    keep_freed_memory()
    tf_startup.import_runtime()
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.framework import errors
    from tensorflow.python.training import server_lib

    library = kernels.library()
    if config.monitoring.metrics_port is not None:
        from embedps.cluster import task_metrics
        from embedps.run.metrics_port import MetricsPort

        MetricsPort(config.monitoring).show(task_metrics.METRICS, None)
    session = config_pb2.ConfigProto()
    # A local cluster's processes share the cores: a spinning thread takes time from the others.
    session.experimental.disable_thread_spinning = True
    address = cluster[task["type"]][int(task["index"])]
    first = int(os.environ.get(FIRST_TASK, "0"))
    jobs = [job for job in ("worker", "ps") if job in cluster]
    places = {job: {first + i: at for i, at in enumerate(cluster[job])} for job in jobs}
    listen_at(address)
    try:
        _server = server_lib.Server(  # tf.distribute.Server
            server_lib.ClusterSpec({**cluster, **places}),
            job_name=task["type"],
            task_index=first + int(task["index"]),
            protocol="grpc",
            config=session,
            start=True,
        )
    except errors.OpError as error:
        raise ClusterError(
            f"{task['type']} {task['index']} cannot serve at {address}: {error.message}"
        ) from error
    check_listening(address)
    name = f"{task['type']} {task['index']}"
    say(f"embedps: {name} serves at {address}")
    has_client = False
    while not told.wait(_TICK_SECS):  # signal handlers run between two waits
        had, has_client = has_client, library.embedps_secs_since_probe() < _CLIENT_SECS
        if has_client and not had:
            say(f"embedps: {name} has a client")
    library.embedps_leave()
    deadline = time.monotonic() + config.grace_secs
    while time.monotonic() < deadline and not library.embedps_released():
        if library.embedps_secs_since_probe() > _CLIENT_SECS:
            break  # no client is there to release it
        time.sleep(_TICK_SECS)
    say(f"embedps: {name} ends, as it was told to")
    os._exit(0)  # TensorFlow's shutdown would wait for calls that do not return


def keep_freed_memory() -> None:
    """Makes malloc keep freed memory, so that each step does not get its tensors in new pages.

    By default glibc returns blocks of over 128 KiB, and the free end of a heap, to the kernel. The
    kernel then zeroes and maps a page for each 4 KiB of the next step's tensors. Glibc also spreads
    threads over 8 heaps per core; a unit's reader, which has its own thread, would then not reuse
    what another one freed.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        libc.mallopt(_M_ARENA_MAX, len(os.sched_getaffinity(0)))


def main(arguments: Sequence[str], prog: str = "python -m embedps.server") -> NoReturn:
    """Serves as a task of TF_CONFIG."""
    serve(flags.read(ServerConfig, arguments, prog, __doc__))


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

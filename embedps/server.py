"""One worker or parameter server of a cluster: `python -m embedps.server`, told by TF_CONFIG.

It serves until it is ended, one client after the other. SIGTERM is a notice: its client, which asks
for it, lets a worker finish its unit and saves a checkpoint before it lets the server end; that has
--grace-secs. With EMBEDPS_PARENT_PID set, as in a local cluster, the server ends with that process,
however that ends.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from embedps import kernels
from embedps.cluster.bind_address import check_listening, listen_at
from embedps.config_fields import MAX_SECS
from embedps.console import command_line, tf_startup
from embedps.console.child_process import end_with_parent
from embedps.errors import ClusterError, UsageError
from embedps.run.config import TrainConfig
from embedps.run.tf_config import read_tf_config

_CLIENT_SECS = 5.0  # a client that has not asked for so long is none
_TICK_SECS = 0.1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of malloc.h


def add_grace_flag(parser: argparse.ArgumentParser) -> None:
    """The flag that a server shares with `embedps.train`."""
    default = TrainConfig.grace_secs
    parser.add_argument(
        "--grace-secs",
        type=command_line.number(float, above=0, most=MAX_SECS),
        default=default,
        metavar="X",
        help=f"(default: {default})",
    )


def serve(*, grace_secs: float) -> NoReturn:
    """Serves as the task that TF_CONFIG names, until it is told to end.

    Args:
      grace_secs: from then on, that its client has to let it go.

    Raises:
      UsageError: TF_CONFIG is absent, names no worker or ps, or a wildcard for this task.
      ClusterError: its address cannot be bound.
    """
    config = read_tf_config()
    if config is None:
        raise UsageError("a server must be told its task by TF_CONFIG, which is not set")
    task = config["task"]
    if task["type"] not in ("worker", "ps"):
        raise UsageError(f"a server's task must be worker or ps but TF_CONFIG has {task['type']!r}")
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    parent = os.environ.get("EMBEDPS_PARENT_PID")
    if parent is not None:
        end_with_parent(int(parent))
    keep_freed_memory()
    tf_startup.import_runtime()
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.framework import errors
    from tensorflow.python.training import server_lib

    library = kernels.library()
    session = config_pb2.ConfigProto()
    # A local cluster's processes share the cores: a thread that spins takes another's work time.
    session.experimental.disable_thread_spinning = True
    address = config["cluster"][task["type"]][int(task["index"])]
    listen_at(address)
    try:
        _server = server_lib.Server(  # tf.distribute.Server
            server_lib.ClusterSpec(config["cluster"]),
            job_name=task["type"],
            task_index=int(task["index"]),
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
    print(f"embedps: {name} serves at {address}", flush=True)
    has_client = False
    while not told.wait(_TICK_SECS):  # a handler runs between two waits
        had, has_client = has_client, library.embedps_secs_since_probe() < _CLIENT_SECS
        if has_client and not had:
            print(f"embedps: {name} has a client", flush=True)
    library.embedps_leave()
    deadline = time.monotonic() + grace_secs
    while time.monotonic() < deadline and not library.embedps_released():
        if library.embedps_secs_since_probe() > _CLIENT_SECS:
            break  # nobody who could let it go
        time.sleep(_TICK_SECS)
    print(f"embedps: {name} ends, as it was told to", flush=True)
    os._exit(0)  # TensorFlow's own end would wait for calls that do not return


def keep_freed_memory() -> None:
    """Has malloc keep what is freed, so that a step's tensors are not of new pages each time.

    By default glibc gives blocks of over 128 KiB and a heap's free end back to the kernel, which
    then zeroes and maps a page for each 4 KiB of a step's tensors again. And it would spread
    threads over 8 heaps a core, so that a unit's reader, a thread of its own, finds no other's.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        libc.mallopt(_M_ARENA_MAX, len(os.sched_getaffinity(0)))


def main(arguments: Sequence[str], prog: str = "python -m embedps.server") -> NoReturn:
    """Serves as a task of TF_CONFIG."""
    parser = command_line.Parser(prog=prog, description=__doc__)
    add_grace_flag(parser)
    serve(grace_secs=parser.parse_args(arguments).grace_secs)


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

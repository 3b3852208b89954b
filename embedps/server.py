"""One worker or parameter server of a cluster: `python -m embedps.server`, told by TF_CONFIG.

It serves until it is ended. With EMBEDPS_PARENT_PID set, as in a local cluster, it ends with that
process, however that ends.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from embedps import flags, quiet
from embedps.errors import ClusterError, UsageError
from embedps.listen import check_listening, listen_at

_PR_SET_PDEATHSIG = 1


def read_tf_config() -> dict[str, Any] | None:
    """TF_CONFIG as an object; None where it is not set.

    Raises:
      UsageError: it is not of TensorFlow's form.
    """
    text = os.environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
        task = config["task"]
        addresses = config["cluster"][task["type"]]
        int(task["index"])
        if not isinstance(addresses, list):
            raise TypeError(f"the addresses of {task['type']} must be a list")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            'TF_CONFIG must be {"cluster": {"chief": […], "worker": […], "ps": […]}, "task": '
            f'{{"type": "worker", "index": 0}}}} but is {text[:200]!r} ({error!r})'
        ) from error
    if not 0 <= int(task["index"]) < len(addresses):
        raise UsageError(
            f"TF_CONFIG's task index must be under {len(addresses)}, the number of "
            f"{task['type']} tasks, but is {task['index']}"
        )
    return config  # type: ignore[no-any-return]


def serve() -> None:
    """Serves as the task that TF_CONFIG names; returns never.

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
    parent = os.environ.get("EMBEDPS_PARENT_PID")
    if parent is not None:
        end_with_parent(int(parent))
    quiet.import_tensorflow()
    from embedps import kernels

    kernels.load()
    import tensorflow as tf

    address = config["cluster"][task["type"]][int(task["index"])]
    listen_at(address)
    try:
        server = tf.distribute.Server(
            tf.train.ClusterSpec(config["cluster"]),
            job_name=task["type"],
            task_index=int(task["index"]),
            protocol="grpc",
            start=True,
        )
    except tf.errors.OpError as error:
        raise ClusterError(
            f"{task['type']} {task['index']} cannot serve at {address}: {error.message}"
        ) from error
    check_listening(address)
    print(f"embedps: {task['type']} {task['index']} serves at {address}", flush=True)
    server.join()


def end_with_parent(pid: int) -> None:
    """Ties this process to the one that started it, and leaves Ctrl-C to that one."""
    # Ctrl-C reaches the whole terminal group; the client is who decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != pid:
        sys.exit(0)  # it had ended before the line above


def main(arguments: Sequence[str]) -> int:
    """`python -m embedps.server`."""
    parser = flags.Parser(
        prog="python -m embedps.server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    serve()
    return 0


if __name__ == "__main__":
    flags.run(main)

"""Reads TF_CONFIG, which lists the tasks of a cluster and names the task of this process."""

from __future__ import annotations

import json
import os
from typing import Any

from embedps.errors import UsageError

FIRST_TASK = "EMBEDPS_FIRST_TASK"
"""The variable that tells a server of a local cluster TensorFlow's number of task 0, if not 0."""


def read_tf_config() -> dict[str, Any] | None:
    """Parses TF_CONFIG; gives None if it is not set.

    Raises:
      UsageError: it does not have TensorFlow's form.
    """
    text = os.environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
        task = config["task"]
        if not isinstance(config["cluster"], dict):
            raise TypeError("the cluster must map types of tasks to addresses")
        addresses = config["cluster"][task["type"]]
        int(task["index"])
        if not isinstance(addresses, list):
            raise TypeError(f"the addresses of {task['type']} must be a list")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
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


def is_server(config: dict[str, Any]) -> bool:
    """Tells whether this task serves a chief: as a worker or a parameter server."""
    return config["task"]["type"] in ("worker", "ps") and not is_of_workers(config)


def is_of_workers(config: dict[str, Any]) -> bool:
    """Tells whether TF_CONFIG lists workers only: they train in step, without servers."""
    tasks = config["cluster"]
    return [job for job in tasks if tasks[job]] == ["worker"]

"""What TensorFlow says of failures, which are ours to tell; `startup` is about its greetings."""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
from typing import Any

# Where several ops failed: "2 root error(s) found.", then "  (0) CODE: message", and so on.
_FIRST_ROOT = re.compile(
    r"\d+ root error\(s\) found\.\s+\(0\) [\w ]+: (.*?)(?:\n +\(1\) |\Z)", re.S
)


def own_errors_alone() -> None:
    """Has TensorFlow's Python say no more of units and servers that fail.

    Such a failure is an error of ours, said once.
    """
    import tensorflow as tf

    tf.get_logger().setLevel(logging.CRITICAL)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _take_unraisable


def _take_unraisable(problem: sys.UnraisableHookArgs) -> None:
    """Drops what TensorFlow's objects raise as they go, of servers that are gone."""
    if not type(problem.exc_value).__module__.startswith("tensorflow."):
        sys.__unraisablehook__(problem)


@functools.cache
def silence_native_stderr() -> int:
    """Drops what TensorFlow's threads print from here on: servers that it ends are not news.

    What Python prints to sys.stderr still comes out.

    Returns:
      A descriptor of what standard error was.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    if _descriptor_of(sys.stderr) == 2:  # not a notebook's
        sys.stderr = os.fdopen(kept, "w", buffering=1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    return kept


def _descriptor_of(stream: Any) -> int | None:
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def own_words(message: str) -> str:
    """An op's own words, in one line, without what TensorFlow puts around them.

    Where several ops failed they are the first one's.
    """
    several = _FIRST_ROOT.search(message)
    if several:
        message = several.group(1)
    around = (
        "Graph execution error",
        "Detected at node",
        "Additional GRPC error",
        ":UNKNOWN:",
        "<stack",
    )
    lines = (line.rstrip() for line in message.splitlines())
    own = [x for x in lines if x and not x.startswith((" ", "\t", "[[", "<stack", *around))]
    return " ".join(own)

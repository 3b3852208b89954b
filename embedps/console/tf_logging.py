"""Silences what TensorFlow logs of failures that we report ourselves, and shortens its messages.

`tf_startup` silences what it logs at its start.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

# What surrounds the message of an op that ran by itself.
_EAGER_OP = re.compile(r"^\{\{function_node \S+\}\} | \[Op:\w+\]( name:( \S*)?)?$")
# Where several ops failed: "2 root error(s) found.", then "  (0) CODE: message", and so on.
_FIRST_ROOT = re.compile(
    r"\d+ root error\(s\) found\.\s+\(0\) [\w ]+: (.*?)(?:\n +\(1\) |\Z)", re.S
)


def silence_python_logging() -> None:
    """Stops TensorFlow's Python from logging failures of units and servers.

    We raise each such failure as an error of our own, once.
    """
    import tensorflow as tf

    tf.get_logger().setLevel(logging.CRITICAL)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _take_unraisable


def _take_unraisable(problem: sys.UnraisableHookArgs) -> None:
    """Drops errors of TensorFlow's objects that are deleted after their server is gone."""
    if not type(problem.exc_value).__module__.startswith("tensorflow."):
        sys.__unraisablehook__(problem)


@functools.cache
def silence_native_stderr() -> int:
    """Drops what TensorFlow's C++ threads print from now on, such as about servers that we end.

    What Python prints to sys.stderr still appears.

    Returns:
      A descriptor of the standard error before.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    if _descriptor_of(sys.stderr) == 2:  # a notebook has another
        sys.stderr = os.fdopen(kept, "w", buffering=1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    return kept


_dropping = threading.RLock()


@contextlib.contextmanager
def native_stderr_dropped() -> Iterator[None]:
    """Drops what TensorFlow's C++ prints within the block; what Python prints still appears.

    One block runs at a time: what it puts back is what it found.
    """
    with _dropping:
        yield from _drop_native_stderr()


def _drop_native_stderr() -> Iterator[None]:
    sys.stderr.flush()
    before, kept = sys.stderr, os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    with os.fdopen(kept, "w", buffering=1) as shown:
        if _descriptor_of(before) == 2:  # a notebook has another
            sys.stderr = shown
        os.dup2(null, 2)
        os.close(null)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            sys.stderr = before


def _descriptor_of(stream: Any) -> int | None:
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def op_error_text(message: str) -> str:
    """Returns an op's own error message as one line, without what TensorFlow puts around it.

    If several ops failed, it is the first one's.
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
    return _EAGER_OP.sub("", " ".join(own))

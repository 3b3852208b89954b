"""Starts Python programs as forks of one process that has imported TensorFlow and embedps already.

A fresh interpreter takes seconds of a core to import them; a fork takes none. It is a process of
its own in all else: its parent is the one that started it, and it has its own environment, files,
signals and exit code. Only `/proc` shows the command line and the environment of the process that
it was forked from: a file in memory has its own, for `commands.processes_with`. What looks at
imports starts a fresh interpreter.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What most programs import, and nothing that starts a thread: forks would lack it.
IMPORTED = (
    "embedps",  # first: it makes TensorFlow's start quiet
    "tensorflow",
    "tests.builders",
    "tests.commands",
    "embedps.train",
    "embedps.evaluate",
    "embedps.predict",
    "embedps.export",
    "embedps.serve",
    "embedps.training.recovery",
    "embedps.evaluation.evaluator",
    "embedps.models.dlrm",
    "embedps.models.networks.dlrm",
)
# Of the environment, what only a fresh interpreter heeds.
FRESH = ("PYTHON", "TF_CPP_", "TF_USE_", "LD_", "GLIBC_", "OMP_", "OPENBLAS_", "CUDA_")
REQUEST = "forked-program"  # the name of the file in memory that says what a fork runs
_PR_SET_CHILD_SUBREAPER = 36
_lock = threading.Lock()
_server: tuple[int, socket.socket] | None = None  # the process that has it, and its channel


class Forked(subprocess.Popen[str]):
    """A process as of `subprocess.Popen`, with text streams, that is a fork.

    Its arguments are those of Python: `-m MODULE`, `-c CODE` or a file, and the program's own.
    """

    def __init__(self, arguments: Sequence[str | os.PathLike[str]], **options: Any) -> None:
        super().__init__([sys.executable, *arguments], text=True, **options)

    def _execute_child(self, *arguments: Any) -> None:
        """Replaces what forks and executes; its arguments are in the order of `subprocess`."""
        command, cwd, env, pipes = arguments[0], arguments[5], arguments[6], arguments[10:16]
        stdin, _, _, stdout, _, stderr = pipes
        files = [0 if stdin == -1 else stdin, 1 if stdout == -1 else stdout]
        files.append(2 if stderr == -1 else stderr)
        request = {
            "arguments": [os.fspath(each) for each in command[1:]],
            "cwd": os.fspath(cwd or os.getcwd()),
            "environment": dict(os.environ if env is None else env),
        }
        try:
            self.pid = _fork(request, files)
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True


def start(
    arguments: Sequence[str | os.PathLike[str]],
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[str]:
    """Starts a Python program: as a fork, if what its environment asks for can be had of one."""
    env = os.environ if env is None else env
    if _fresh_part(env) != _fresh_part(os.environ):
        return subprocess.Popen([sys.executable, *arguments], env=env, text=True, **options)
    return Forked(arguments, env=env, **options)


def run(
    arguments: Sequence[str | os.PathLike[str]],
    *,
    capture_output: bool = False,
    check: bool = False,
    input: str | None = None,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program to its end, as `subprocess.run` does with `text`."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(arguments, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _fresh_part(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(FRESH) and name not in ("PYTHONUNBUFFERED", "PYTHONPATH")
    }


def _fork(request: Mapping[str, Any], files: Sequence[int]) -> int:
    """Has the server fork a child of this process; returns its process id."""
    global _server
    prctl = ctypes.CDLL(None).prctl
    with _lock:
        if _server is None or _server[0] != os.getpid():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
            theirs.close()
            _server = os.getpid(), ours
        channel = _server[1]
        # The fork's first parent ends at once: this process then becomes its parent.
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(channel, [json.dumps(request).encode()], list(files))
            answer = channel.recv(64)
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0)
    if not answer:
        raise ChildProcessError("the server of forks has ended")
    return int(answer)


def _serve(channel: socket.socket) -> None:
    """Forks as it is asked to; returns in each fork when its program has ended, and at the end."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else each fork would visit, and so copy, all that was imported
    while True:
        message, files, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not message:
            return
        read, write = os.pipe()
        first = os.fork()
        if first == 0:
            middle = os.getpid()
            second = os.fork()
            if second != 0:
                os.write(write, str(second).encode())
                os._exit(0)
            while os.getppid() == middle:
                time.sleep(0.001)
            channel.close()
            os.close(read)
            os.close(write)
            _become(json.loads(message), files)
            return
        os.waitpid(first, 0)
        channel.send(os.read(read, 64))
        for file in (read, write, *files):
            os.close(file)


def _become(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Runs a program as a fresh interpreter would."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.write(os.memfd_create(REQUEST), json.dumps(request).encode())
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
    tempfile.tempdir = None  # of its own environment
    random.seed()
    sys.modules["numpy"].random.seed()
    arguments: list[str] = request["arguments"]
    sys.orig_argv[1:] = arguments
    more = request["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [os.path.abspath(each) for each in more if each]
    if arguments[0] == "-m":
        sys.path[0] = request["cwd"]
        sys.argv[:] = ["-m", *arguments[2:]]
        sys.modules.pop(arguments[1], None)
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.path[0] = ""
        sys.argv[:] = ["-c", *arguments[2:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        sys.argv[:] = arguments
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__file__ = arguments[0]
        exec(compile(Path(arguments[0]).read_bytes(), arguments[0], "exec"), main.__dict__)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))

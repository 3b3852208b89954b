"""A fork is a process as a fresh interpreter would be, but for what takes long."""

import os
import signal
import subprocess
import sys

import pytest

from tests import forked

PROGRAM = """
import json, os, random, sys, threading
import tensorflow as tf
print(json.dumps(str([os.getppid(), sys.argv, os.getcwd(), os.environ.get("TOLD"), __name__])))
print(tf.reduce_sum(tf.constant([1, 2])).numpy(), file=sys.stderr)
print(sys.stdin.read(), random.random(), os.getpid(), sys.path[0] + "|" + sys.path[1])
sys.exit(7)
"""


def test_it_has_the_parent_arguments_environment_files_and_code_of_its_own(tmp_path):
    ends = []
    for _ in range(2):
        done = forked.run(
            ["-c", PROGRAM, "a", "b c"],
            cwd=tmp_path,
            env={**os.environ, "TOLD": "so", "PYTHONPATH": str(tmp_path / "more")},
            input="given",
            capture_output=True,
        )
        assert (done.returncode, done.stderr) == (7, "3\n")
        told, end = done.stdout.splitlines()
        assert told == f"\"[{os.getpid()}, ['-c', 'a', 'b c'], '{tmp_path}', 'so', '__main__']\""
        assert end.startswith("given ")
        assert end.endswith(f" |{tmp_path / 'more'}")
        ends.append(end)
    assert ends[0] != ends[1]  # other processes, and other random numbers


def test_it_ends_by_a_signal_and_by_an_error():
    process = forked.start(
        ["-c", "import signal; print('on', flush=True); signal.pause()"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    done = forked.run(["-m", "tests.no_such_module"], capture_output=True)
    assert done.returncode == 1
    assert "No module named tests.no_such_module" in done.stderr
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(["-c", "import signal; signal.pause()"], timeout=0.1)


def test_what_only_a_fresh_interpreter_heeds_starts_one():
    code = "import sys; print('tensorflow' in sys.modules)"
    assert forked.run(["-c", code], capture_output=True).stdout == "True\n"
    fresh = {**os.environ, "PYTHONWARNINGS": "error"}
    done = forked.run(["-c", code], env=fresh, capture_output=True)
    assert (done.stdout, done.args[0]) == ("False\n", sys.executable)

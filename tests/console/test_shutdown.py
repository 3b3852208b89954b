"""How a process ends: signals as notices, waits with a limit."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from embedps.console.shutdown import shutdown_signals
from tests.builders import ROOT

PROGRAM = """
import os, signal, sys, threading
from embedps.console.shutdown import deadline, shutdown_signals, sigterm_exits

def stop():  # in a signal's handler, where a print may meet one that is under way
    os.write(1, b"told\\n")

kind = sys.argv[1]
if kind == "within":
    with deadline(0.2, "a friend"):
        threading.Event().wait(60)
if kind in ("exits", "stuck"):
    with sigterm_exits(0.2 if kind == "stuck" else 60.0):
        try:
            print("up", flush=True)
            threading.Event().wait(60)
        finally:
            if kind == "stuck":
                threading.Event().wait(60)
            print("cleaned up", flush=True)
with shutdown_signals(stop, grace_secs=0.5 if kind == "grace" else 60.0):
    print("up", flush=True)
    while True:
        threading.Event().wait(0.1)
"""


def start(kind: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, kind],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_second_ctrl_c_ends_the_process_at_once():
    process = start("signals")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "told\n"
    process.send_signal(signal.SIGINT)  # the first of its kind
    process.send_signal(signal.SIGTERM)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    while process.poll() is None:  # signals of one kind may be taken as one
        process.send_signal(signal.SIGINT)
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    assert process.communicate(timeout=30)[0] == ""  # told once
    assert process.returncode == 130


def test_process_that_cannot_save_in_time_ends_with_a_line():
    process = start("grace")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "no checkpoint could be saved within 0 s: the last one stands" in err


def test_wait_that_takes_too_long_ends_the_process_with_what_it_waited_for():
    process = start("within")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "embedps: waited 0 s for a friend; run the same command again to resume" in err


@pytest.mark.parametrize(("kind", "said"), [("exits", "cleaned up\n"), ("stuck", "")])
def test_process_with_nothing_to_save_ends_with_code_0_at_sigterm(kind: str, said: str):
    process = start(kind)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30) == (said, "")
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_notice_is_given_once_and_handlers_are_put_back(number):
    before = signal.getsignal(number)
    told: list[int] = []
    with shutdown_signals(lambda: told.append(1), grace_secs=60):
        os.kill(os.getpid(), number)
        threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.01)
    assert told == [1]
    assert signal.getsignal(number) == before

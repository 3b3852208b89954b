"""What the tests of whole commands share: to start one, to wait for it, to read what it left."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from embedps import table
from embedps.checkpoint import __main__ as checkpoint
from embedps.console import command_line
from embedps.data.dataset import Dataset
from tests import forked
from tests.builders import ROOT, TINY_DLRM_FLAGS

LEARN = ("--sparse-learning-rate=0.2", "--dense-learning-rate=0.05", "--dense-optimizer=adagrad")
SMALL = (*TINY_DLRM_FLAGS, *LEARN, "--batch-size=64", "--unit-rows=512")


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", **more}


def start(module: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
    return forked.start(
        ["-m", module, *arguments],
        cwd=ROOT,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def script_of(code: str) -> str:
    """Makes code a script of this Python, as pip writes it where a path may have a space."""
    return f"""#!/bin/sh\n'''exec' "{sys.executable}" "$0" "$@"\n' '''\n{code}"""


def run(
    *arguments: object,
    code: int = 0,
    cwd: Path = ROOT,
    given: str | None = None,
    timeout: float | None = 200,
    python: str | Path = sys.executable,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Runs a fresh interpreter of Python to its end, which must be with this code.

    Its input is what is `given`.
    """
    done = subprocess.run(
        [python, *map(str, arguments)],
        cwd=cwd,
        env=environment(**more),
        input=given,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done


def run_program(
    *arguments: str | Path,
    given: str | None = None,
    timeout_secs: float | None = None,
    **more: str,
) -> str:
    """Runs a Python program, which must end well, as a fork; gives it input, returns its output.

    What connects to a cluster needs one: TensorFlow never leaves it.
    """
    done = forked.run(
        [*map(str, arguments)],
        cwd=ROOT,
        env=environment(**more),
        capture_output=True,
        input=given,
        timeout=timeout_secs,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """Its output; nothing on stderr where it ends well."""
    out, err = process.communicate(timeout=200)
    assert process.returncode == code, f"{out}\n{err}"
    if code == 0:
        assert [x for x in err.splitlines() if not x.startswith("embedps: building ")] == []
    return out


def train(dataset: Dataset, model_dir: Path, *more: str, **env: str) -> subprocess.Popen[str]:
    where = (f"--data={dataset.directory}", f"--model-dir={model_dir}")
    return start("embedps.train", *where, *more, **env)


def checkpoint_command(arguments: Sequence[str]) -> int:
    """Runs `embedps.checkpoint` in this process; gives its exit code."""
    return command_line.run(checkpoint.main, arguments)


def table_command(*arguments: object) -> int:
    """Runs `embedps.table` in this process; gives its exit code."""
    return command_line.run(table.main, [*map(str, arguments)])


def summary_of(model_dir: Path) -> dict[str, Any]:
    summary = json.loads((model_dir / "summary.json").read_text())
    assert isinstance(summary, dict)
    return summary


def evaluations_of(model_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (model_dir / "evaluation.jsonl").open()]


def processes_with(text: str) -> dict[int, str]:
    """The live processes whose command line, environment or output's path has a text."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            command = (folder / "cmdline").read_bytes()
            seen = (folder / "environ").read_bytes() + os.readlink(folder / "fd" / "1").encode()
            for file in (folder / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed since the folder was read
                    if os.readlink(file).startswith(f"/memfd:{forked.REQUEST} "):
                        command = file.read_bytes()
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if text.encode() in command + seen and state not in ("Z", "X"):
            found[int(folder.name)] = command.decode()
    return found


def until(condition: Callable[[], bool]) -> None:
    """Waits until something holds; at most a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_gone(text: str) -> None:
    """Returns once no such process lives; each is waited for by its own descriptor."""
    for pid in processes_with(text):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([handle], [], [], 30)[0], f"{pid} lives on"
        finally:
            os.close(handle)
    assert processes_with(text) == {}


def read_until(process: subprocess.Popen[str], *texts: str) -> str:
    """Reads lines until each text was in one, in any order."""
    seen, missing = [], set(texts)
    assert process.stdout is not None
    for line in process.stdout:
        seen.append(line)
        print(line, end="")  # for who reads why a test failed
        missing -= {text for text in missing if text in line}
        if not missing:
            return "".join(seen)
    pytest.fail(f"ended with {process.wait()} before {missing}: {''.join(seen)}")


def tf_config(cluster: dict[str, Sequence[str]], job: str, index: int = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})

"""Runs a server, and the run that it follows, as processes of this machine."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import report
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.errors import EmbedpsError, UsageError

_WAIT_SECS = 120.0


class Server:
    """A server's process and addresses.

    Attributes:
      said: its lines before it served.
    """

    def __init__(self, module: str, *arguments: str, prefix: Sequence[str] = ()) -> None:
        """Starts it, and waits until it serves.

        Args:
          module: to run.
          prefix: what the command is an argument of, such as `prlimit`.

        Raises:
          UsageError: it ends before that.
        """
        command = [*prefix, sys.executable, "-m", module, *arguments, "--port=0", "--rest-port=0"]
        began = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.said: list[str] = []
        for line in self.process.stdout or ():
            if found := re.search(r"^serves .* at (\S+) \(gRPC\) and (\S+)", line):
                break
            self.said.append(line.strip())
        else:
            raise UsageError(f"{module} did not start: see above")
        self.start_secs = time.monotonic() - began
        self.grpc, self.rest = found.groups()

    def memory(self) -> dict[str, float]:
        """Gives the resident memory in MB, and how much of it is no page of a file."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return {
            name: round(int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1000, 1)  # type: ignore[index]
            for name, field in (("rss_mb", "VmRSS"), ("anonymous_mb", "RssAnon"))
        }

    def cpu_secs(self) -> float:
        """Gives the seconds of processors that it has used."""
        return report.cpu_secs(self.process.pid)

    def metric(self, name: str) -> float:
        """Reads a metric of Prometheus; 0 if it is absent; the sum over its labels."""
        with urllib.request.urlopen(f"{self.rest}/metrics") as answer:
            text = answer.read().decode()
        return sum(float(v) for v in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", text, re.M))


@contextmanager
def running(module: str, *arguments: str) -> Iterator[Server]:
    """Runs a server."""
    server = Server(module, *arguments)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait()


@contextmanager
def training(folder: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `embedps train` on FOLDER/data in FOLDER/model, from its first commit on; then ends it.

    Raises:
      EmbedpsError: it commits nothing in time.
    """
    where = (f"--data={folder / 'data'}", f"--model-dir={folder / 'model'}")
    command = [sys.executable, "-m", "embedps.train", *where, "--eval=none", *flags]
    process = subprocess.Popen(command, stdout=sys.stderr)
    directory = CheckpointDirectory(folder / "model")
    deadline = time.monotonic() + _WAIT_SECS
    try:
        while not directory.numbers():
            if time.monotonic() > deadline or process.poll() is not None:
                raise EmbedpsError("the run committed no checkpoint in time")
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait()

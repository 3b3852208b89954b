"""What results are made of: the environment, spreads, and the costs of a process."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedps.run.summary import versions

RESULTS = Path(__file__).parent / "results"


def environment() -> dict[str, Any]:
    """Describes the commit, the machine and the versions of a measurement."""
    root = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() or "unknown"

    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return {
        "commit": git("rev-parse", "--short", "HEAD"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "versions": versions(),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Summarizes repeated measurements: median, minimum and maximum."""
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
        "repeats": len(values),
    }


def cpu_secs(pid: int) -> float:
    """Returns the seconds of processors that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes() -> int:
    """Returns the resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def anonymous_bytes() -> int:
    """Returns the resident memory of this process without pages of files, which can be dropped."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024

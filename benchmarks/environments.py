"""Installs the peers, each in its own environment with versions that work together."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

from embedps.errors import EmbedpsError

_KERAS = (
    "tensorflow==2.21.0",
    "tf-keras==2.21.0",
    "tensorflow-recommenders==0.7.7",
    "numpy==2.4.6",
)
_TORCH = ("torch==2.13.0", "numpy==2.4.6")


class PeerError(EmbedpsError):
    """A peer cannot be installed or measured; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer:
    """A system to compare with embedps.

    Attributes:
      title: its name in tables.
      module: its program in benchmarks.peers.
      environment: its folder in the cache; peers of the same packages share one.
      packages: the packages to install.
      alone: packages to install without their dependencies (TorchRec requires the CUDA FBGEMM).
    """

    title: str
    module: str
    environment: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()


PEERS = {
    "tf": Peer(
        title="TensorFlow, one process",
        module="tf_keras",
        environment="tf",
        packages=_KERAS,
    ),
    "tf-ps": Peer(
        title="stock ParameterServerStrategy",
        module="tf_ps",
        environment="tf",
        packages=_KERAS,
    ),
    "torchrec": Peer(
        title="TorchRec + FBGEMM",
        module="torchrec_dlrm",
        environment="torchrec",
        # fbgemm 1.7 and 1.9 do not load with this torch.
        packages=(
            *_TORCH,
            "fbgemm-gpu-cpu==1.8.0",
            "tensordict==0.15.3",
            "torchmetrics==1.0.3",
            "iopath==0.1.10",
            "pyre-extensions==0.0.32",
        ),
        alone=("torchrec==1.8.0",),
    ),
    "dlrm": Peer(
        title="PyTorch DLRM",
        module="pytorch_dlrm",
        environment="dlrm",
        packages=_TORCH,
    ),
}


BASELINES = Peer(
    title="LightGBM, scikit-learn, implicit",
    module="",
    environment="baselines",
    packages=(
        "lightgbm==4.7.0",
        "scikit-learn==1.9.1",
        "implicit==0.7.3",
        "numpy==2.4.6",
    ),
)


def cache() -> Path:
    """Returns the folder that keeps the environments between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "embedps" / "peers"


def python_of(peer: Peer) -> Path:
    """Returns the interpreter of a peer's environment; makes the environment if it is absent.

    Raises:
      PeerError: a package cannot be installed.
    """
    folder = cache() / peer.environment
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join((*peer.packages, *peer.alone))
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"installing {', '.join((*peer.packages, *peer.alone))} into {folder}", flush=True)
    if folder.exists() and not python.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *peer.packages])
    if peer.alone:
        _run([*pip, "--no-deps", *peer.alone])
    stamp.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["no output"]
        raise PeerError(f"cannot be installed: {errors[-1]}")

"""The command `embedps`, which is also `python -m embedps`: it runs one of the commands below it.

A command is imported when it is run, so that `embedps --help` imports neither TensorFlow nor Arrow.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import embedps
from embedps.console import command_line

_COMMANDS = {
    "plan": "tell what a run will need and how fast it will be, before it starts",
    "train": "train a model on a dataset: in this process, on a local cluster or with TF_CONFIG",
    "tune": "find a good model for a small dataset within so many minutes, and train it",
    "scale": "give a run of a local cluster more workers or fewer, while it trains",
    "evaluate": "score the checkpoints of a run on held-out data, while it trains or later",
    "compare": "tell which of two models scores better on the same examples, and whether by chance",
    "calibrate": "fit the layer that makes chances of predictions, for all that score with a model",
    "report": "write one page of a run to send: scores, slices, calibration, tables, failures",
    "predict": "score files of records with a trained model",
    "export": "write a SavedModel that TensorFlow Serving loads",
    "serve": "answer requests with a trained model, over gRPC and REST, while it trains on",
    "server": "be one worker or parameter server of a cluster",
    "table": "look up, import or forget rows of tables, in checkpoints",
    "checkpoint": "inspect, verify, export, compact or compare checkpoints; statistics of tables",
}
_DESCRIPTION = """\
Trains recommenders whose embedding tables live on parameter servers.
"""
_EPILOG = """\
`python -m embedps.COMMAND` runs the same command.

first steps:
  python -m embedps.pipelines.generate --rows 200_000 --output logs/day_0.tsv.gz
  python -m embedps.pipelines.criteo --input 'logs/*.tsv.gz' --output dataset
  {prog} plan --data dataset
  {prog} train --data dataset --model-dir run
  {prog} train --data dataset --model-dir run --epochs 2 --num-ps 2 --num-workers 2
  {prog} checkpoint inspect run

Run a train command again to resume from its last checkpoint.

exit codes:
  0 done   1 failed   2 a wrong flag or file   74 no checkpoint could be written for too long
  75 a server was lost or the directory is in use: run it again   130 interrupted
"""


def main() -> NoReturn:
    """Runs the command that this process's arguments name."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py":
        prog = "python -m embedps"
    else:
        prog = script.name
        if not sys.flags.safe_path:
            # `python -m` finds a user's model in the working directory; a script must be told to.
            with suppress(OSError):  # the directory was removed
                sys.path.append(os.getcwd())
    sys.exit(command_line.run(functools.partial(dispatch, prog=prog), sys.argv[1:]))


def dispatch(arguments: Sequence[str], prog: str = "embedps") -> int:
    """Runs a command.

    Args:
      arguments: the command's name, and its own arguments.
      prog: what the user called this program.

    Returns:
      The exit code.

    Raises:
      UsageError: there is no such command.
    """
    name = command_line.choose(
        _COMMANDS,
        arguments,
        prog,
        _DESCRIPTION,
        epilog=_EPILOG.format(prog=prog),
        version=f"embedps {embedps.__version__}",
    )
    module = "checkpoint.__main__" if name == "checkpoint" else name
    command = importlib.import_module(f"embedps.{module}")
    code: int = command.main(arguments[1:], prog=f"{prog} {name}")
    return code


if __name__ == "__main__":
    main()

"""Measures the cost of checkpoints: `python -m benchmarks.checkpoint cost|pause|encodings`.

cost: bytes and seconds of bases and deltas as tables grow, against a plain copy of the same bytes.
pause: the throughput of training with and without concurrent saves, in one run.
encodings: the bytes of quantized rows, and the AUC after ten restores from them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import checkpoint_cost, checkpoint_encodings, checkpoint_pause, report
from embedps.console import command_line

PARTS = {
    "cost": checkpoint_cost,
    "pause": checkpoint_pause,
    "encodings": checkpoint_encodings,
}


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.checkpoint", description=__doc__)
    commands = parser.add_subparsers(dest="part", required=True)
    for name, part in PARTS.items():
        command = commands.add_parser(name, help=(part.__doc__ or "").splitlines()[0])
        part.add_arguments(command)
        output = report.RESULTS / f"checkpoint_{name}.json"
        command.add_argument("--output", type=report.output_file, default=output)
    options = parser.parse_args(arguments)
    environment = report.environment()
    content = PARTS[options.part].run(options)
    config = {k: v for k, v in vars(options).items() if k not in ("output", "part")}
    report.write(
        options.output,
        {
            "benchmark": f"checkpoint_{options.part}",
            "command": " ".join(["python -m benchmarks.checkpoint", *arguments]),
            "environment": environment,
            "config": {k: str(v) if isinstance(v, Path) else v for k, v in config.items()},
            **content,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

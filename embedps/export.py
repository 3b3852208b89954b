"""Exports a run's model for TensorFlow Serving: `embedps export --model-dir DIR --output DIR`.

OUTPUT/<number>/ is a SavedModel of TensorFlow's own ops: whatever loads SavedModels can serve it,
and needs no embedps. It is there once it is complete. An export that is there already is left as it
is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.config_fields import MAX_COUNT
from embedps.console import command_line
from embedps.console.command_line import number, text
from embedps.console.lines import say
from embedps.console.progress import ProgressLine
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.features.transforms import Transforms
from embedps.run.run_config import read_run
from embedps.run.run_flags import add_model_and_data
from embedps.serving import unknown_queries
from embedps.serving.export_directory import read_description
from embedps.storage.object_store import as_path, is_local

_ROW_DTYPES = ("float32", "bfloat16", "int8")


def main(arguments: Sequence[str], prog: str = "python -m embedps.export") -> int:
    """Exports a checkpoint."""
    options = _parser(prog).parse_args(arguments)
    output = as_path(options.output)
    if not is_local(output):
        raise UsageError(f"--output {output} must be a local directory: copy the export there")
    model_dir = as_path(options.model_dir)
    run = read_run(model_dir, model=options.model)
    dataset = Dataset.open(options.data or run.data)
    directory = CheckpointDirectory(model_dir)
    manifest = directory.latest() if options.number is None else directory.read(options.number)
    if manifest is None:
        raise UsageError(f"{model_dir} has no checkpoint yet: train first")
    target = output / str(manifest.number)
    if target.exists():
        return _check_same(target, manifest.history, options)
    # TensorFlow takes seconds to import; wrong flags and files are reported before that.
    from embedps.serving.export_model import export_model

    say(f"exports checkpoint {manifest.number}")
    with command_line.sigterm_interrupts(), ProgressLine("export", 0, unit="rows") as line:
        exported = export_model(
            run.recommender(dataset),
            dataset,
            directory,
            output,
            manifest.number,
            row_dtype=options.rows,
            top_k=options.top_k,
            unknown_query=options.unknown_query,
            table=Transforms.of(dataset).table if options.raw else None,
            seed=run.config.seed,
            on_progress=lambda done, total: line.update(done, total=total),
        )
    say(
        f"{exported.path}: {exported.rows:,} rows in {exported.row_bytes / 1e6:,.1f} MB, "
        f"signatures {', '.join(exported.signatures)}"
    )
    return 0


def _check_same(target: Path, history: str, options: Any) -> int:
    """Tells that an export is there.

    Raises:
      UsageError: it is of another run, or was made with other flags.
    """
    found = read_description(target)
    if found["manifest"]["history"] != history:
        raise UsageError(f"{target} is there, of another run: give another --output, or remove it")
    wrong = None
    if found["rows"] != options.rows:
        wrong = f"with rows of {found['rows']}"
    elif ("raw" in found["signatures"]) != options.raw:
        wrong = "without the signature raw" if options.raw else "with the signature raw"
    elif found["items"]:
        for name in ("top_k", "unknown_query"):
            if found.get(name) != getattr(options, name):
                wrong = f"with --{name.replace('_', '-')} {found.get(name, 'of an older version')}"
    if wrong:
        raise UsageError(f"{target} is there, {wrong}: give another --output, or remove it")
    say(f"{target}: is there already")
    return 0


def _parser(prog: str) -> command_line.Parser:
    parser = command_line.Parser(prog=prog, description=__doc__)
    parser.add_argument(
        "--model-dir",
        type=text,
        required=True,
        metavar="DIR",
        help="the directory that embedps train was given",
    )
    parser.add_argument(
        "--output",
        type=text,
        required=True,
        metavar="DIR",
        help="the directory of the exports, such as TensorFlow Serving's --model_base_path",
    )
    parser.add_argument(
        "--number",
        type=number(int, least=0, most=MAX_COUNT),
        metavar="N",
        help="the checkpoint's number (default: the newest)",
    )
    parser.add_argument(
        "--rows",
        choices=_ROW_DTYPES,
        default="float32",
        help="dtype of the stored rows; float32 gives the evaluator's scores bit for bit "
        "(default: float32)",
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="add the signature `raw`, which takes what the dataset was made of: its transforms "
        "are part of the export",
    )
    parser.add_argument(
        "--top-k",
        type=number(int, least=1, most=MAX_COUNT),
        default=100,
        metavar="K",
        help="how many items a request gets of a retrieval model (default: 100)",
    )
    unknown_queries.add_flag(parser)
    add_model_and_data(parser)
    return parser


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

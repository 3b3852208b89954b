"""Exports a run's model for TensorFlow Serving: `embedps export --model-dir DIR --output DIR`.

OUTPUT/<number>/ is a SavedModel of TensorFlow's own ops: whatever loads SavedModels can serve it,
and needs no embedps. It is there once it is complete. An export that is there already is left as it
is.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedps.checkpoint.refs import manifest_option
from embedps.config_fields import MAX_COUNT, option
from embedps.console import command_line, flags
from embedps.console.lines import say
from embedps.console.progress import ProgressLine
from embedps.errors import UsageError
from embedps.features.transforms import Transforms
from embedps.run.calibration_file import to_json
from embedps.run.memory_options import MemoryOptions
from embedps.run.opened_run import RunOptions, uncalibrated_option
from embedps.serving import unknown_queries
from embedps.serving.export_directory import read_description
from embedps.serving.unknown_queries import UnknownQuery
from embedps.storage.object_store import as_path, is_local

_ROW_DTYPES = ("float32", "bfloat16", "int8")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(MemoryOptions, RunOptions):
    """An export: of which run, where to, and what it holds."""

    output: str = option(
        dataclasses.MISSING,
        "the directory of the exports, such as TensorFlow Serving's --model_base_path",
        metavar="DIR",
    )
    number: int | str | None = manifest_option(
        None, "the checkpoint's number, or a ref (default: the newest)"
    )
    row_dtype: str = option(
        "float32",
        "dtype of the stored rows; float32 gives the evaluator's scores bit for bit",
        choices=_ROW_DTYPES,
    )
    raw: bool = option(
        False,
        "add the signature `raw`, which takes what the dataset was made of: its transforms are "
        "part of the export",
    )
    top_k: int = option(
        100,
        "how many items a request gets of a retrieval model",
        least=1,
        most=MAX_COUNT,
    )
    unknown_query: UnknownQuery = unknown_queries.choice()
    uncalibrated: bool = uncalibrated_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_local(as_path(self.output)):
            raise UsageError(
                f"--output {self.output} must be a local directory: copy the export there"
            )


def main(arguments: Sequence[str], prog: str = "python -m embedps.export") -> int:
    """Exports a checkpoint."""
    export(flags.read(ExportConfig, arguments, prog, __doc__))
    return 0


def export(config: ExportConfig) -> Path:
    """Exports a checkpoint, or leaves the export that is there; returns the SavedModel's path.

    Raises:
      UsageError: the run, the checkpoint or the output is not what it must be, or the model
        computes something that an export cannot.
      CheckpointError: the checkpoint is not there, or is damaged.
    """
    output, run = Path(config.output), config.open()
    manifest = run.manifest(config.number)
    recommender = run.calibrated(manifest, uncalibrated=config.uncalibrated)
    fitted = recommender.calibration
    layer = None if fitted is None else to_json(fitted)
    target = output / str(manifest.number)
    if target.exists():
        _check_same(target, manifest.history, config, layer)
        say(f"{target}: is there already")
        return target
    # TensorFlow takes seconds to import; wrong flags and files are reported before that.
    from embedps.serving.export_model import export_model

    say(f"exports checkpoint {manifest.number}")
    with command_line.sigterm_interrupts(), ProgressLine("export", 0, unit="rows") as line:
        exported = export_model(
            recommender,
            run.dataset,
            run.directory,
            output,
            manifest.number,
            row_dtype=config.row_dtype,  # type: ignore[arg-type]
            top_k=config.top_k,
            unknown_query=config.unknown_query,
            table=Transforms.of(run.dataset).table if config.raw else None,
            seed=run.seed,
            memory=config.memory(),
            on_progress=lambda done, total: line.update(done, total=total),
        )
    say(
        f"{exported.path}: {exported.rows:,} rows in {exported.row_bytes / 1e6:,.1f} MB, "
        f"signatures {', '.join(exported.signatures)}"
    )
    return exported.path


def _check_same(
    target: Path, history: str, config: ExportConfig, layer: dict[str, Any] | None
) -> None:
    """Checks an export that is there.

    Raises:
      UsageError: it is of another run, or was made with other options.
    """
    found = read_description(target)
    if found["manifest"]["history"] != history:
        raise UsageError(f"{target} is there, of another run: give another --output, or remove it")
    wrong = None
    if found["rows"] != config.row_dtype:
        wrong = f"with rows of {found['rows']}"
    elif ("raw" in found["signatures"]) != config.raw:
        wrong = "without the signature raw" if config.raw else "with the signature raw"
    elif found["items"]:
        for name in ("top_k", "unknown_query"):
            if found.get(name) != getattr(config, name):
                wrong = f"with --{name.replace('_', '-')} {found.get(name, 'of an older version')}"
    if found.get("calibration") != layer:
        wrong = "with another calibration, or none"
    if wrong:
        raise UsageError(f"{target} is there, {wrong}: give another --output, or remove it")


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

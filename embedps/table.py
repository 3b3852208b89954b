"""Works on the rows of a run's tables, in its checkpoints: `embedps table COMMAND DIR`.

Exit code 0: done. 1: a checkpoint is damaged or absent, has no such row, or still has what it must
not have. 2: the command is wrong.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from embedps import config_fields
from embedps.checkpoint import directory_command
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.directory_command import leased
from embedps.checkpoint.refs import manifest_option
from embedps.checkpoint.tools.forget import forget, traces
from embedps.checkpoint.tools.get_rows import get_rows
from embedps.checkpoint.tools.import_rows import Present, import_rows
from embedps.checkpoint.tools.new_table import add_table
from embedps.checkpoint.tools.replay import stream_table
from embedps.checkpoint.tools.row_input import RowInput, ids_of, read_ids
from embedps.checkpoint.tools.row_output import BESIDES_SLOTS, check_kind, write_rows
from embedps.checkpoint.tools.run_texts import RunTexts, texts_option
from embedps.config_fields import option
from embedps.console import command_line
from embedps.console.lines import say, say_json
from embedps.errors import UsageError
from embedps.features.text_values import fingerprint


def main(arguments: Sequence[str], prog: str = "python -m embedps.table") -> int:
    """Runs one command; returns its exit code."""
    return directory_command.run(_COMMANDS, arguments, prog, __doc__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableConfig:
    """Names a table of a model directory."""

    directory: str = option(
        dataclasses.MISSING, "a path, or an s3:// or gs:// URL", metavar="DIR", positional=True
    )
    table: str = option(dataclasses.MISSING, "the table", metavar="NAME")

    def __post_init__(self) -> None:
        config_fields.check(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdsConfig(TableConfig):
    """Says what ids are given as."""

    text_ids: bool = option(
        False, "ids are given as texts, as ingestion makes ids of a column of strings"
    )

    @property
    def fingerprint(self) -> Callable[[str], int] | None:
        """What makes an id of a text; None if ids are numbers."""
        return fingerprint if self.text_ids else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GetConfig(IdsConfig):
    """Prints the rows of ids, a line of JSON for each."""

    id: tuple[str, ...] = option(dataclasses.MISSING, "the ids", metavar="ID", several=True)
    texts: tuple[str, ...] = texts_option()
    number: int | str | None = manifest_option(
        None, "a manifest's number, or a ref; default: newest"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRowsConfig(TableConfig):
    """Replays base and deltas, and writes a table's rows to a file."""

    output: Path = option(
        dataclasses.MISSING, "the .parquet, .npz or .safetensors file to write", metavar="FILE"
    )
    optimizer_slots: bool = option(True, "write the optimizer slots too")
    texts: tuple[str, ...] = texts_option()
    number: int | str | None = manifest_option(
        None, "a manifest's number, or a ref; default: newest"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind(self.output)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportConfig(IdsConfig):
    """Gives a table the vectors of a file, while no run trains; may make a directory of vectors."""

    input: Path = option(
        dataclasses.MISSING,
        "a .parquet, .arrow, .npz or .safetensors file with id and embedding, and optimizer slots "
        "if it has them; .csv with id and a column per float; word vectors as text (.vec, .txt); "
        "or an array: .npy, .safetensors, Keras' .keras or .h5, the .index of a checkpoint of "
        "TensorFlow",
    )
    ids: Path | None = option(
        None, "the ids of an array's rows: .npy, or one per line; else the rows' numbers"
    )
    tensor: str | None = option(None, "the array's name, or a part of it", metavar="NAME")
    optimizer_slots: bool = option(True, "take the optimizer slots that the file has")
    present: Present = option(
        "refuse", "what to do if an id has a row: refuse the import, keep the row or replace it"
    )
    embedding_dim: int | None = option(
        None,
        "floats per row of a new table, in a directory that no run trains in; `embedps train "
        "--from` begins with it",
        least=1,
    )

    @property
    def makes_directory(self) -> bool:
        return self.embedding_dim is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProveConfig(IdsConfig):
    """Reads every byte that is left, and names the files that have one of the ids."""

    ids: Path = option(dataclasses.MISSING, "a file of ids, one per line")
    evicted_rows: str | None = option(
        None, "the run's directory of evicted rows", metavar="EVICTED"
    )
    texts: tuple[str, ...] = texts_option()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForgetConfig(ProveConfig):
    """Removes ids from every file, and older manifests, while no run trains."""


def _get(directory: CheckpointDirectory, config: GetConfig) -> int:
    ids = ids_of(config.id, config.fingerprint)
    with leased(directory, config.number, "get") as manifest:
        absent = 0
        rows = get_rows(directory, manifest, config.table, ids)
        texts = RunTexts([manifest], config.texts).of(ids)
        for given, (number, row) in zip(config.id, rows, strict=True):
            text = given if config.text_ids else texts.get(number)
            shown = {"id": number} if text is None else {"id": number, "text": text}
            say_json(shown | ({"absent": True} if row is None else row.to_pylist()[0]))
            absent += row is None
    return 1 if absent else 0


def _export(directory: CheckpointDirectory, config: ExportRowsConfig) -> int:
    with leased(directory, config.number, "export") as manifest:
        groups = {table["name"]: table["group"] for table in manifest.tables}
        if config.table not in groups:
            raise UsageError(f"--table must be one of {sorted(groups)} but is {config.table!r}")
        saved = (file for save in manifest.chain for file in save.files)
        files = [file for file in saved if file.group == groups[config.table]]
        directory.check_content(manifest, files)
        schema, batches = stream_table(directory, manifest, config.table)
        if not config.optimizer_slots:
            schema = pa.schema([field for field in schema if field.name in BESIDES_SLOTS])
            batches = (batch.select(schema.names) for batch in batches)
        texts = RunTexts([manifest], config.texts)
        if texts.folders and config.output.suffix == ".parquet":
            schema, batches = texts.beside(schema, batches)
        num_rows = write_rows(config.output, schema, batches)
    say(
        f"{config.output}: {num_rows:,} rows of {config.table} "
        f"from manifest {manifest.number}, step {manifest.step:,}"
    )
    return 0


def _import(directory: CheckpointDirectory, config: ImportConfig) -> int:
    given = RowInput(
        path=config.input,
        ids=config.ids,
        tensor=config.tensor,
        optimizer_slots=config.optimizer_slots,
        text_ids=config.text_ids,
        fingerprint=config.fingerprint,
    )
    if config.embedding_dim is not None:
        add_table(directory, config.table, config.embedding_dim)
    elif not directory.numbers():
        raise UsageError(
            f"{directory.path} holds no checkpoint: --embedding-dim makes one of vectors alone"
        )
    made = import_rows(directory, config.table, given, present=config.present)
    said = f"{made.present:,} ids had a row"
    if made.manifest is None:
        say(f"{directory.path}: no row of {config.table} is new: {said}")
        return 0
    slots = f"with {', '.join(made.slots)}" if made.slots else "without optimizer slots"
    say(
        f"{directory.path}: manifest {made.manifest.number} with delta-"
        f"{made.manifest.save_number}: {made.rows:,} rows of {config.table} from {config.input}, "
        f"{slots}; {said}"
    )
    return 0


def _forget(directory: CheckpointDirectory, config: ForgetConfig) -> int:
    ids = read_ids(config.ids, config.fingerprint)
    texts = RunTexts.of_all(directory, config.texts)
    made = forget(directory, config.table, ids, evicted_rows=config.evicted_rows, texts=texts)
    where = "no file had them" if made.manifest is None else f"manifest {made.manifest.number}"
    say(
        f"{directory.path}: {len(ids):,} ids of {config.table} are forgotten: {where}: "
        f"{made.rows:,} rows and counters, {made.evicted:,} evicted rows, {made.texts:,} texts"
    )
    _say_absent(texts)
    for line in made.left:
        say(line)
    for number, why in made.held.items():
        say(f"manifest {number} may still have them: {why}: forget again once it does not")
    return 1 if made.held or made.left else 0


def _prove_absent(directory: CheckpointDirectory, config: ProveConfig) -> int:
    ids = read_ids(config.ids, config.fingerprint)
    texts = RunTexts.of_all(directory, config.texts)
    _say_absent(texts)
    found = 0
    for line in (
        *traces(directory, config.table, ids, evicted_rows=config.evicted_rows),
        *texts.traces(ids),
    ):
        found += 1
        say(line)
    if not found:
        say(f"{directory.path}: no file has one of {len(ids):,} ids of {config.table}")
    return 1 if found else 0


def _say_absent(texts: RunTexts) -> None:
    for path in texts.absent:
        say(f"the dataset {path} is not here: if it lies elsewhere, --texts reads its texts of ids")


_COMMANDS: directory_command.Commands = {
    "get": (GetConfig, _get),
    "export": (ExportRowsConfig, _export),
    "import": (ImportConfig, _import),
    "forget": (ForgetConfig, _forget),
    "prove-absent": (ProveConfig, _prove_absent),
}


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

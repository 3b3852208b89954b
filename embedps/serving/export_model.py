"""Exports a run's model as a SavedModel of stock ops, with the rows of a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.lease import LeaseRenewer
from embedps.console import tf_logging
from embedps.data.dataset import Dataset
from embedps.engine.checkpoint_restore import check_tables, load_dense
from embedps.engine.model_signature import check_signature, signature_of
from embedps.engine.recommender import Recommender
from embedps.engine.step_model import StepModel
from embedps.errors import CheckpointError
from embedps.features.table_schema import Table
from embedps.layers import stock_ops
from embedps.run.calibration_file import to_json
from embedps.serving import unknown_queries
from embedps.serving.export_directory import EXTRA, describe, new_export
from embedps.serving.row_arrays import RowDtype, RowStack, stack_rows
from embedps.serving.stock_lookup import StockTables
from embedps.serving.stock_model import StockModel
from embedps.serving.unknown_queries import UnknownQuery
from embedps.serving.warm_up import FILE_NAME, write_requests
from embedps.tables.groups import group_tables
from embedps.tables.tiered import Tiered


class Progress(Protocol):
    """Shows the rows that were read."""

    def __call__(self, done: int, total: int) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """What was exported.

    Attributes:
      path: of the SavedModel.
      rows: of all tables.
      row_bytes: of their arrays.
      signatures: the names of its functions.
    """

    path: Path
    rows: int
    row_bytes: int
    signatures: tuple[str, ...]


def export_model(
    recommender: Recommender,
    dataset: Dataset,
    directory: CheckpointDirectory,
    output: Path,
    number: int,
    *,
    top_k: int,
    unknown_query: UnknownQuery = unknown_queries.DEFAULT,
    row_dtype: RowDtype = "float32",
    table: Table | None = None,
    seed: int = 0,
    memory: Tiered | None = None,
    on_progress: Progress = lambda done, total: None,
) -> Exported:
    """Writes OUTPUT/<number>: a SavedModel that TensorFlow loads without embedps.

    Args:
      dataset: whose columns it gets.
      output: of the exports.
      number: of the checkpoint's manifest.
      top_k: how many of its candidates a retrieval model gives a request.
      unknown_query: what a query gets none of whose ids has been trained.
      row_dtype: of the stored rows.
      table: of the dataset's `embedps.Transforms`, to take raw values too.
      memory: of the rows' arrays, which otherwise are in memory. The vectors of a retrieval model's
        candidates are in memory in any case.
      on_progress: called with the rows that were read, and their total; each is read twice.

    Raises:
      UsageError: the model computes something that an export cannot, or the output cannot be
        written.
      DirectoryInUseError: another process exports this number there.
      CheckpointError: the checkpoint is not there, is damaged, or is of another model.
    """
    tf_logging.silence_python_logging()
    with (
        new_export(output, number) as path,
        LeaseRenewer(directory, holder="export") as lease,
        stock_ops.stock_ops(),
        tf.device("/device:CPU:0"),
    ):
        manifest = lease.take(number)
        if manifest is None:
            raise CheckpointError(
                f"{directory.path} has no manifest {number}: there are {directory.numbers()}"
            )
        tf.keras.utils.set_random_seed(seed)
        model = StepModel(recommender, dataset)
        check_tables(manifest, _tables_in_use(model), embedding_dim=model.embedding_dim)
        check_signature(manifest, signature_of(model))
        directory.check_content(manifest, manifest.files)
        stock = StockModel(model, table, unknown_query=unknown_query)
        load_dense(directory, manifest, model.named_variables)
        stacks = _stack(directory, manifest, stock, row_dtype, memory, on_progress)
        stock.take(StockTables(stacks, stock.tables), top_k=top_k)
        signatures = stock.signatures()
        tf.saved_model.save(stock, str(path), signatures=signatures)
        (path / EXTRA).mkdir()
        write_requests(path / EXTRA / FILE_NAME, stock.warm_up_requests())
        asked: dict[str, Any] = {}
        asked |= {"top_k": top_k, "unknown_query": unknown_query} if stock.ranks_items else {}
        about = _description(manifest, row_dtype, stacks, stock.num_items, [*signatures])
        layer = recommender.calibration
        asked |= {} if layer is None else {"calibration": to_json(layer)}
        describe(path, about | asked)
    return Exported(
        path=output / str(number),
        rows=sum(stack.num_rows for stack in stacks),
        row_bytes=sum(stack.num_bytes for stack in stacks),
        signatures=tuple(signatures),
    )


def _tables_in_use(model: StepModel) -> list[Any]:
    return [t for group in group_tables(model.tables, model.features) for t in group.tables]


def _stack(
    directory: CheckpointDirectory,
    manifest: Manifest,
    stock: StockModel,
    row_dtype: RowDtype,
    memory: Tiered | None,
    on_progress: Progress,
) -> list[RowStack]:
    done, total = 0, 2 * sum(save.rows for save in manifest.chain)

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        on_progress(done, max(total, done))

    return stack_rows(
        directory,
        manifest,
        stock.tables,
        row_dtype=row_dtype,
        with_updates=stock.ranks_items,
        memory=memory,
        on_rows=count,
    )


def _description(
    manifest: Manifest,
    row_dtype: RowDtype,
    stacks: Sequence[RowStack],
    num_items: int,
    signatures: list[str],
) -> dict[str, Any]:
    return {
        "manifest": {
            "number": manifest.number,
            "history": manifest.history,
            "step": manifest.step,
            "wall_time": manifest.wall_time,
            "files": {
                entry.path: {"bytes": entry.bytes, "xxh3_64": entry.xxh3_64}
                for entry in manifest.files
            },
        },
        "rows": row_dtype,
        "tables": {
            table.name: {"dim": stack.dim, "rows": table.num_rows}
            for stack in stacks
            for table in stack.tables.values()
        },
        "items": num_items,
        "signatures": signatures,
        "tensorflow": tf.__version__,
    }

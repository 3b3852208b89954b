"""Builds what a run trains: ledger, tables, network and checkpoint writer, restored if resumed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.evicted_directory import EvictedDirectory
from embedps.checkpoint.format.ledger_state import check_ledger
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.retention import KeepPolicy
from embedps.cluster.interface import Cluster
from embedps.cluster.replica_devices import make_mirrored_strategy
from embedps.data.dataset import Dataset
from embedps.data.dataset_function import DatasetFunction, DatasetReader
from embedps.data.unit_reader import UnitInput
from embedps.engine.checkpoint_restore import check_tables, dtype_changes, eviction_changes
from embedps.engine.dense_optimizer import (
    has_schedule,
    kind_of,
    make_dense_optimizer,
    rate_scaler,
)
from embedps.engine.model_signature import (
    check_optimizer,
    check_signature,
    check_transforms,
    signature_of,
)
from embedps.engine.network_check import check_missing, check_step, large_variables
from embedps.engine.random_numbers import reseed_generators
from embedps.engine.recommender import Recommender
from embedps.engine.step_model import StepModel
from embedps.engine.steps.interface import ClipNorms
from embedps.engine.steps.step_logs import StepLogs
from embedps.engine.steps.ways import ONE_PROCESS
from embedps.engine.unit_functions import make_train_unit
from embedps.engine.variable_names import name_optimizer
from embedps.errors import CheckpointError, UsageError
from embedps.run.config import TrainConfig
from embedps.run.eviction_config import EvictionConfig
from embedps.run.preparation import check_watch
from embedps.scheduling.arrivals import Arrivals
from embedps.scheduling.division import LedgerOptions, rows_digest
from embedps.scheduling.event_clock import EventAges
from embedps.scheduling.ledger import Ledger
from embedps.scheduling.unit_deaths import UnitDeaths
from embedps.scheduling.watch_ledger import WatchLedger
from embedps.tables.byte_limits import ServerLimit
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.eviction import SizeLimit, find
from embedps.tables.specs import TableSpec, brings_schedule, event_secs_of
from embedps.training.asked_scores import check_scores
from embedps.training.checkpoint_writer import CheckpointWriter
from embedps.training.evicted_rows import EvictedRowsWriter
from embedps.training.warm_start import warm_start


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """The parts of a run, as of its last checkpoint.

    Attributes:
      directory: of the checkpoints.
      ledger: which units are done.
      collection: the tables.
      model: the model.
      variables: of the network and its optimizer, by name; checkpoints have these.
      writer: writes the checkpoints.
      train_unit: trains a unit on a worker.
      step_logs: the parameter servers' logs of applied steps.
      evicted: writes the rows that are evicted; None if nobody keeps them.
      dense_rate: the variable of the network's learning rate; None if that is a schedule.
      set_dense_rate: sets the network's learning rate to a factor of the config's.
      examples_before: examples of the units that were done before this run.
      nan_where_missing: the network gives NaN where a numeric column is missing.
      event_ages: which rows are too old by their event time.
      changes: lines that say what this run declares otherwise than its last checkpoint.
    """

    directory: CheckpointDirectory
    ledger: Ledger
    collection: EmbeddingCollection
    model: StepModel
    variables: Mapping[str, tf.Variable]
    writer: CheckpointWriter
    train_unit: Any
    step_logs: StepLogs
    evicted: EvictedRowsWriter | None
    dense_rate: tf.Variable | None
    set_dense_rate: Callable[[float], Any]
    examples_before: int
    nan_where_missing: bool
    event_ages: EventAges
    changes: tuple[str, ...]


def set_up(
    recommender: Recommender,
    dataset: Dataset,
    config: TrainConfig,
    cluster: Cluster,
    keep: Sequence[KeepPolicy],
    *,
    run_id: int,
    dataset_fn: DatasetFunction | None = None,
    before: TrainingSetup | None = None,
) -> TrainingSetup:
    """Makes the parts of a run and restores the last checkpoint of its model directory.

    Args:
      dataset: whose split "train" is read.
      cluster: where.
      keep: which checkpoints stay, besides those that the config asks for.
      run_id: tells this run's tables from those of other runs in this process.
      dataset_fn: what is read instead of the split.
      before: of the same run on another cluster, which trains still: `resume` restores what it
        saves last. The ledger is that one's.

    Raises:
      UsageError: the network cannot be trained, or the directory is of another dataset.
      DimMismatchError: the directory is of another model.
      CheckpointError: its last checkpoint cannot be read.
    """
    directory = CheckpointDirectory(config.model_dir)
    last = directory.latest() if before is None else None
    asked, steps = config.optimizer, config.cluster
    # First: it divides the CPU, if TensorFlow has not started yet.
    mirrored = make_mirrored_strategy(steps.replicas) if steps.mirrored else None
    if dataset_fn is not None and config.evaluation.inner_share:
        raise UsageError(
            "inner_share is of a dataset's rows, which dataset_fn replaces: leave it out"
        )
    if before is None:
        rows = {"batch_rows": config.batch_size, "unit_rows": config.unit_rows}
        divided = dataset if dataset_fn is None else dataset_fn.divide(dataset, **rows)
        ledger = _make_ledger(divided, config, directory, counts_deaths=cluster.leads)
    else:
        ledger = before.ledger
    if last is not None:
        check_ledger(last.ledger, directory.manifest_path(last.number))
        check_transforms(last, dataset.transforms_digest)  # first: it says the most
        visited = {"rows": int(last.progress.get("examples", 0)), "steps": last.step}
        ledger.restore({"visited": visited, **last.ledger})
    if before is None:
        cluster.check_same(0 if last is None else last.number)
    tf.keras.utils.set_random_seed(config.seed)  # a model may draw what no checkpoint has
    with cluster.scope():
        model = StepModel(recommender, dataset)
        network = model.model
        unchanged = check_step(
            model,
            cluster.strategy,
            on_servers=steps.way(cluster.place) != ONE_PROCESS,
        )
        nan_where_missing = not check_missing(model, dataset)
        check_scores(config, model, dataset)
        optimizer = make_dense_optimizer(
            model.optimizer or asked.dense_optimizer,
            asked.dense_learning_rate * config.dense_rate_scale(cluster.num_workers),
            model.model,
            weight_decay=asked.dense_weight_decay,
        )
        if not asked.is_constant and (has_schedule(optimizer) or model.has_row_schedule):
            raise UsageError(
                "the model has a schedule of its own: leave out --schedule and --warmup"
            )
        if asked.rates_batch_size and (model.optimizer or model.has_row_schedule):
            raise UsageError(
                "the model brings its own optimizer or schedule, which --rates-batch-size cannot "
                "scale: leave it out"
            )
        if last is not None or before is not None:
            reseed_generators(network, config.seed, ledger.steps_done())
    tables = asked.declared(model.tables)
    if brings_schedule(tables) and (not asked.is_constant or model.has_row_schedule):
        raise UsageError(
            "a table has a schedule of its own: leave out --schedule, --warmup and row_schedule"
        )
    _check_byte_limits(config, tables)
    _check_memory(config, tables, has_rows_on_workers=cluster.place == "workers")
    if dataset_fn is not None and event_secs_of(tables):
        raise UsageError(
            "TimeToLive in event time needs the times of files, which dataset_fn has not: use steps"
        )
    event_ages = (
        EventAges(dataset, ledger, event_secs_of(tables), shuffle=config.shuffle)
        if before is None
        else before.event_ages
    )
    cluster.seed_steps(config.seed)
    collection = cluster.make_tables(
        tables,
        model.features,
        container="embedps" if cluster.num_ps else f"embedps-{os.getpid()}-{run_id}",
        learns=model.rows_learn,
        unchanged=unchanged,
        learning_rate=None if model.has_row_schedule else asked.row_rate(tables),
        server_limit=server_limit(config.eviction),
        memory=config.eviction.memory(),
        keeps_evicted=config.eviction.evicted_rows is not None,
    )
    evicted = _evicted_writer(config.eviction, directory, collection)
    kind = kind_of(optimizer)
    signature = signature_of(model, kind)
    named = model.named_variables
    trained = {id(variable) for variable in network.trainable_variables}
    variables = {**named, **name_optimizer(optimizer, named)}
    writer = CheckpointWriter(
        directory,
        collection,
        variables,
        model=signature,
        rebase=config.checkpoint.rebase_policy(),
        keep=(*config.keep_policies(), *keep),
        encoding=config.checkpoint.encoding(),
        evicted=evicted,
        must_be_finite=[name for name, variable in named.items() if id(variable) in trained],
        is_successor=before is not None,
    )
    set_dense_rate = cluster.rate_setter(rate_scaler(optimizer))
    examples_before = ledger.rows_done()
    changes = [*ledger.changes, *_frozen_lines(tables)]
    changes += large_variables(named) if cluster.place == "servers" else []
    if last is not None:
        check_tables(last, collection.tables, embedding_dim=model.embedding_dim)
        changes += [*eviction_changes(last, collection), *dtype_changes(last, collection)]
        from_vectors = " ".join(("--from-vectors", *config.warm_start.vectors))
        unused = [f"--from {config.warm_start.model}"] if config.warm_start.model else []
        unused += [from_vectors] if config.warm_start.vectors else []
        changes += [
            f"{flag} has no effect: the run goes on from its own checkpoint" for flag in unused
        ]
        check_signature(last, signature)
        check_optimizer(last, directory, kind, model)
        writer.restore(last)
    elif before is None:
        with warm_start(
            config.warm_start,
            directory,
            collection,
            variables,
            transforms=dataset.transforms_digest,
            dense_optimizer=kind,
            leads=cluster.leads,
        ) as begun:
            writer.keep_vectors(begun.vectors)
        changes += begun.lines
    if evicted is not None and before is None:
        evicted.begin(0 if last is None else last.save_number)
    num_workers = cluster.num_workers if cluster.num_ps else 1
    step_logs = StepLogs(collection.container, most_stale=steps.staleness_bound(num_workers))
    unit_input: UnitInput
    if dataset_fn is None:
        unit_input = model.input(
            batch_rows=config.batch_size, shuffle_rows=config.unit_rows if config.shuffle else 0
        )
    else:
        unit_input = DatasetReader(
            dataset_fn,
            model.columns,
            batch_rows=config.batch_size,
            label=dataset.label,
            weight=dataset.weight,
            remote=cluster.num_ps > 0,
        )
    train_unit = make_train_unit(
        model,
        optimizer,
        collection,
        cluster.strategy,
        unit_input,
        overlap=steps.overlap,
        clip=ClipNorms(rows=asked.row_clip_norm, dense=asked.dense_clip_norm),
        logs=step_logs,
        sync=steps.sync,
        backup_workers=steps.backup_workers if steps.in_groups else None,
        replicas=steps.replicas,
        mirrored=mirrored,
        workers=cluster.step_workers,
    )
    return TrainingSetup(
        directory=directory,
        ledger=ledger,
        collection=collection,
        model=model,
        variables=variables,
        writer=writer,
        train_unit=cluster.led("train", train_unit),
        step_logs=step_logs,
        evicted=evicted,
        dense_rate=None if has_schedule(optimizer) else optimizer.learning_rate,
        set_dense_rate=set_dense_rate,
        examples_before=examples_before,
        nan_where_missing=nan_where_missing,
        event_ages=event_ages,
        changes=tuple(changes),
    )


def resume(setup: TrainingSetup, seed: int) -> tuple[Manifest, int]:
    """Restores what a run has saved into what was made beside it.

    Args:
      setup: made with `before`, which trains no more.
      seed: of the run.

    Returns:
      The checkpoint, and how many of its records were loaded: all but those of before.

    Raises:
      CheckpointError: the last checkpoint cannot be read.
    """
    last = setup.directory.latest()
    if last is None:
        raise CheckpointError(f"{setup.directory.path} has no checkpoint to go on from")
    reseed_generators(setup.model.model, seed, last.step)
    loaded = setup.writer.restore(last)
    if setup.evicted is not None:
        setup.evicted.begin(last.save_number)
    setup.event_ages.tell_again()
    return last, loaded


def _frozen_lines(tables: Sequence[TableSpec]) -> list[str]:
    """Says which tables' rows stay as they are."""
    names = [t.name for t in tables if not t.trainable]
    names += [f"{t.name} before step {t.frozen_steps}" for t in tables if t.frozen_steps]
    return [f"tables whose rows stay as they are: {', '.join(names)}"] if names else []


def server_limit(config: EvictionConfig) -> ServerLimit | None:
    """Makes the limit that all tables of a server share, if the run has one."""
    if not config.max_server_bytes:
        return None
    return ServerLimit(max_bytes=config.max_server_bytes, order=config.server_eviction_order)


def _check_byte_limits(config: TrainConfig, tables: Sequence[TableSpec]) -> None:
    """Checks that what a byte limit counts for removals suffices: they must end with each save."""
    if not config.checkpoint.rebase_policy().cumulative:
        return
    limits = ((t.name, find(t.eviction, SizeLimit)) for t in tables)
    named = ["max_server_bytes"] if config.eviction.max_server_bytes else []
    named += [f"max_bytes of table {name!r}" for name, limit in limits if limit and limit.max_bytes]
    if named:
        raise UsageError(
            f"{named[0]} must go with --rebase consecutive but got {config.checkpoint.rebase}, "
            "whose deltas keep all removals since the base in memory"
        )


def _check_memory(
    config: TrainConfig, tables: Sequence[TableSpec], *, has_rows_on_workers: bool
) -> None:
    """Checks that tables may have a memory of their own."""
    name = next((t.name for t in tables if t.memory is not None), None)
    if name is None:
        return
    if config.eviction.max_server_bytes:
        raise UsageError(
            f"max_server_bytes must be 0 with table {name!r}, which has a memory of its own, but "
            f"got {config.eviction.max_server_bytes}"
        )
    if has_rows_on_workers:
        raise UsageError(
            f"table {name!r} must have no memory of its own where TF_CONFIG has workers only: "
            "their rows stay in memory"
        )


def _evicted_writer(
    config: EvictionConfig, directory: CheckpointDirectory, collection: EmbeddingCollection
) -> EvictedRowsWriter | None:
    if config.evicted_rows is None or collection.evicted_files is None:
        return None
    evicted = EvictedDirectory(config.evicted_rows)
    evicted.claim(directory.path)
    return EvictedRowsWriter(evicted, collection.evicted_files)


def _make_ledger(
    dataset: Dataset, config: TrainConfig, directory: CheckpointDirectory, *, counts_deaths: bool
) -> Ledger:
    options = LedgerOptions.of_run(config)
    watched = check_watch(config)
    deaths = UnitDeaths()
    if counts_deaths:
        rows = rows_digest(dataset, options.split)
        deaths = UnitDeaths(directory.path, rows=rows, limit=config.max_unit_deaths)
    if watched is None:
        ledger = Ledger(dataset, options, epochs=config.epochs, deaths=deaths)
        deaths.begin_run(num_units=ledger.units_per_epoch)
        return ledger
    deaths.begin_run()
    return WatchLedger(
        dataset,
        options,
        Arrivals(directory.path),
        epochs=config.epochs,
        directory=watched,
        deaths=deaths,
    )

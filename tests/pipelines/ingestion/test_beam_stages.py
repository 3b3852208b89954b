"""The Beam steps under Beam's own TestPipeline, and on runners of several processes."""

from __future__ import annotations

import functools
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.test_pipeline import TestPipeline as BeamPipeline
from apache_beam.testing.util import assert_that, equal_to

from embedps.data.dataset import Dataset
from embedps.errors import DatasetError
from embedps.features.table_schema import Table
from embedps.pipelines.ingestion.beam_runner import make_pipeline, run_pipeline
from embedps.pipelines.ingestion.beam_stages import ParseFile, WriteShard, build, fit_transforms
from embedps.pipelines.ingestion.ingest_job import IngestJob
from embedps.pipelines.ingestion.input_files import find_inputs
from tests.pipelines import shop
from tests.pipelines.builders import files_of, make_lines, write_log

NUM_LINES = (50, 70)


@pytest.fixture
def logs(tmp_path: Path) -> str:
    for i, number in enumerate(NUM_LINES):
        lines = [*make_lines(number, seed=i), b"bad"]
        write_log(tmp_path / f"logs/{i}.tsv.{('gz', 'zst')[i]}", lines)
    return str(tmp_path / "logs/*")


def make_job(output: Path) -> IngestJob:
    job = IngestJob(
        output=str(output),
        table=Table.load("criteo"),
        num_shards=3,
        row_group_rows=16,
        max_bad_fraction=0.1,
    )
    job.work.path.mkdir(parents=True)
    return job


def test_parse_gives_a_record_of_each_file(tmp_path: Path, logs: str):
    job = make_job(tmp_path / "out")
    inputs = find_inputs([logs])
    with BeamPipeline(runner="FnApiRunner") as pipeline:
        files = pipeline | beam.Create(inputs) | beam.ParDo(ParseFile(job))
        counts = files | beam.Map(
            lambda f: (
                f.index,
                f.name,
                f.lines,
                f.lines_bad,
                sum(sum(r.rows) for r in f.divided.runs),
            )
        )
        assert_that(counts, equal_to([(0, "0.tsv.gz", 51, 1, 50), (1, "1.tsv.zst", 71, 1, 70)]))


def test_whole_pipeline_commits_a_dataset(tmp_path: Path, logs: str):
    job = make_job(tmp_path / "out")
    inputs = find_inputs([logs])
    with BeamPipeline(runner="FnApiRunner") as pipeline:
        build(pipeline, job, inputs)
    dataset = Dataset.open(tmp_path / "out")
    dataset.verify()
    assert (dataset.input.lines_read, dataset.input.lines_bad) == (122, 2)


def test_nothing_is_written_for_a_job_that_is_stopped(tmp_path: Path, logs: str):
    job = make_job(tmp_path / "out")
    inputs = find_inputs([logs])
    with BeamPipeline(runner="FnApiRunner") as pipeline:
        files = pipeline | beam.Create(inputs) | beam.ParDo(ParseFile(job))
        strict = IngestJob(**{**vars(job), "max_bad_fraction": 0.0})
        once = pipeline | "Once" >> beam.Create([None])
        divided = beam.pvalue.AsList(files | "Divided" >> beam.Map(lambda file: file.divided))
        go = once | beam.Map(fit_transforms, strict, beam.pvalue.AsList(files), divided)
        assert_that(go, equal_to([False]), label="go")
        shards = (
            pipeline
            | "Shards" >> beam.Create(job.shard_tasks)
            | beam.ParDo(WriteShard(job), divided, beam.pvalue.AsSingleton(go))
        )
        assert_that(shards, equal_to([]), label="shards")
    assert "2 of 122 are" in job.work.failure.read_text()
    assert not (tmp_path / "out/train").exists()


@contextmanager
def dask_cluster() -> Iterator[str]:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


@contextmanager
def closing_client() -> Iterator[None]:
    """Closes the client that Beam's runner leaves open, which would miss its cluster loudly."""
    from distributed import default_client

    try:
        yield
    finally:
        default_client().close()


make = functools.partial(shop.make, "criteo")


@pytest.mark.multiprocess
@pytest.mark.slow
def test_dask_cluster_of_two_processes_writes_the_same_bytes(tmp_path: Path, logs: str):
    make(logs, tmp_path / "here")
    with dask_cluster() as address:
        flags = (
            "--runner=apache_beam.runners.dask.dask_runner.DaskRunner",
            f"--dask_client_address={address}",
            "--dask_partition_size=1",
        )
        with closing_client():
            make(logs, tmp_path / "there", beam_flags=flags)
        assert files_of(tmp_path / "there") == files_of(tmp_path / "here")
        # A job that is given up is one error here, and leaves no dataset.
        with closing_client(), pytest.raises(DatasetError, match="2 of 122 are"):
            make(logs, tmp_path / "failed", beam_flags=flags, max_bad_fraction=0.0)
    assert [path.name for path in (tmp_path / "failed").iterdir()] == ["_bad_lines.jsonl"]


@pytest.mark.multiprocess
def test_other_direct_runners_write_the_same_bytes(tmp_path: Path, logs: str):
    make(logs, tmp_path / "here")
    threads = ("--direct_num_workers=2", "--direct_running_mode=multi_threading")
    for name, more in (("FnApiRunner", threads), ("BundleBasedDirectRunner", ())):
        make(logs, tmp_path / name, beam_flags=(f"--runner={name}", *more))
        assert files_of(tmp_path / name) == files_of(tmp_path / "here")


@contextmanager
def job_service(tmp_path: Path) -> Iterator[str]:
    """Beam's own portable job service in a process of its own, as Flink's and Spark's are."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main"]
    command += ["-p", str(port), "--staging_dir", str(tmp_path / "staging")]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:  # until it says that it serves
                if f"port {port}" in line:
                    break
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield f"localhost:{port}"
        finally:
            process.terminate()


@pytest.mark.multiprocess
@pytest.mark.slow
def test_portable_job_service_writes_the_same_bytes(tmp_path: Path, logs: str):
    make(logs, tmp_path / "here")
    with job_service(tmp_path) as endpoint:
        flags = ("--runner=PortableRunner", f"--job_endpoint={endpoint}")
        make(logs, tmp_path / "there", beam_flags=(*flags, "--environment_type=LOOPBACK"))
    assert files_of(tmp_path / "there") == files_of(tmp_path / "here")


@pytest.mark.parametrize("kind", [DatasetError, RuntimeError])
def test_error_of_the_data_is_said_without_beams_words(kind: type[Exception]):
    def fail(_: None) -> None:
        begin = "" if kind is DatasetError else "Traceback\n  …\nembedps.errors.DatasetError: "
        raise kind(begin + "a.csv: must have column day")

    pipeline = make_pipeline([], verbose=False)
    _ = pipeline | beam.Create([None]) | "Parse" >> beam.Map(fail)
    with pytest.raises(DatasetError, match=r"^a.csv: must have column day$"):
        run_pipeline(pipeline)

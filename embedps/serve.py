"""Answers requests with the models of runs: `embedps serve --model-dir DIR --name NAME`.

It speaks TensorFlow Serving's API, over gRPC and REST, and follows the checkpoints of a run while
it trains: what a commit changed is seen a fraction of a second later. Each answer is of one
manifest, whose number is the version in it. Give --model-dir and --name again for another model.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.config_fields import MAX_COUNT
from embedps.console import command_line
from embedps.console.command_line import number, path, text
from embedps.console.lines import say
from embedps.console.shutdown import stop_signals
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.features.transforms import Transforms
from embedps.run.run_config import RunConfig, read_run
from embedps.run.run_flags import add_model_and_data
from embedps.serving import unknown_queries
from embedps.serving.server.ranking import Ranking
from embedps.storage.object_store import as_path

if TYPE_CHECKING:  # these import TensorFlow, which --help does not wait for
    from embedps.checkpoint.format.manifest import Manifest
    from embedps.serving.server.live_model import LiveModel
    from embedps.serving.server.model_api import ModelApi

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_MAX_PORT = 65535
_MAX_WAITING = 1024
_SWITCH_SECS = 0.0005
_MAX_TOP_K = 10_000
_EXAMPLE_ROWS = 2


def main(arguments: Sequence[str], prog: str = "python -m embedps.serve") -> int:
    """Serves until SIGTERM or Ctrl-C."""
    options = _parser(prog).parse_args(arguments)
    if options.example_request:
        return _print_example(options)
    _check(options)
    runs = [_Run(where, options) for where in options.model_dir]
    token = _read_token(options.token_file)
    # TensorFlow takes seconds to import; wrong flags and files are reported before that.
    from embedps.console.tf_logging import silence_native_stderr
    from embedps.serving.server.descriptors import share_out
    from embedps.serving.server.grpc_server import GrpcServer
    from embedps.serving.server.model_api import ModelApi
    from embedps.serving.server.rest_server import RestServer

    certificate = (options.tls_cert, options.tls_key) if options.tls_cert else None
    numbers = (max(run.directory.numbers()) for run in runs)
    expected = {
        name: newest if options.number is None else options.number
        for name, newest in zip(options.name, numbers, strict=True)
    }
    api, most = ModelApi(token=token, expected=expected), share_out()
    grpc_server = GrpcServer(
        api,
        host=options.host,
        port=options.port,
        max_waiting=options.max_waiting,
        certificate=certificate,
        max_connections=most.grpc,
    )
    rest_server = RestServer(
        api,
        host=options.host,
        port=options.rest_port,
        certificate=certificate,
        max_connections=most.rest,
    )
    silence_native_stderr()  # such as what oneDNN says of dtypes that it lacks
    # A thread that has scored waits for the interpreter at most so long.
    sys.setswitchinterval(_SWITCH_SECS)
    ended = threading.Event()
    with stop_signals(ended.set):
        # Health is answered while the models load.
        grpc_server.start()
        rest_server.start()
        try:
            for name, run in zip(options.name, runs, strict=True):
                _add(api, name, run, options)
            if not ended.is_set():
                api.health.set(True)
                names = ", ".join(
                    f"{name} (checkpoint {m.standing.number})" for name, m in api.models.items()
                )
                say(
                    f"serves {names} at {options.host}:{grpc_server.port} (gRPC) and "
                    f"{'https' if certificate else 'http'}://{options.host}:{rest_server.port}",
                )
            ended.wait()
        finally:
            api.health.set(False)
            with ThreadPoolExecutor() as both:
                for server in (grpc_server, rest_server):
                    both.submit(server.stop, options.grace_secs)
            for model in api.models.values():
                model.close()
    return 0


def _print_example(options: Any) -> int:
    """Prints the body of a REST request for two records that the model can score."""
    if len(options.model_dir) != 1:
        raise UsageError("--example-request is of one model: give one --model-dir")
    where = options.model_dir[0]
    from embedps.evaluation.loaded_model import load
    from embedps.serving.server.json_bodies import body_of
    from embedps.serving.server.live_model import sample_records

    run = _Run(where, options)
    model = load(where, number=options.number, data=options.data, model=options.model)
    records = sample_records(run.dataset, model.columns).slice(0, _EXAMPLE_ROWS)
    print(body_of(records))
    return 0


class _Run:
    """A run's directory, as the command finds it before TensorFlow is imported."""

    def __init__(self, model_dir: str, options: Any) -> None:
        self.path = as_path(model_dir)
        self.config: RunConfig = read_run(self.path, model=options.model)
        self.dataset = Dataset.open(options.data or self.config.data)
        self.directory = CheckpointDirectory(self.path)
        if not self.directory.numbers():  # a damaged one is reported later: others may be whole
            raise UsageError(f"{self.path} has no checkpoint yet: train first")
        if options.number is not None:
            self.directory.read(options.number)


def _add(api: ModelApi, name: str, run: _Run, options: Any) -> None:
    from embedps.serving.server.live_model import LiveModel
    from embedps.serving.server.served_model import Batching, ServedModel

    recommender = run.config.recommender(run.dataset)
    seed = run.config.config.seed
    transforms = Transforms.of(run.dataset) if options.raw else None

    def make(manifest: Manifest) -> LiveModel:
        return LiveModel(
            recommender,
            run.dataset,
            run.directory,
            manifest,
            ranking=_ranking(options),
            transforms=transforms,
            seed=seed,
        )

    api.models[name] = ServedModel(
        name,
        run.directory,
        make,
        number=options.number,
        follows=options.follow == "yes",
        batching=Batching(
            max_batch_rows=options.batch_rows,
            max_waiting=options.max_waiting,
            wait_secs=options.batch_wait_ms / 1000,
        ),
        on_batch=api.metrics.count_batch(name),
    )


def _ranking(options: Any) -> Ranking:
    return Ranking(
        items=options.items,
        default_k=options.top_k,
        max_k=options.max_top_k,
        encode_rate=options.encode_rate,
        ivf_above=options.ivf_above,
        ivf_recall=options.ivf_recall,
        unknown_query=options.unknown_query,
    )


def _check(options: Any) -> None:
    _ranking(options)
    if len(options.model_dir) != len(options.name):
        raise UsageError(
            f"each --model-dir must have a --name but there are {len(options.model_dir)} and "
            f"{len(options.name)}"
        )
    for name in options.name:
        if not _NAME.fullmatch(name):
            raise UsageError(f"--name must have letters, digits, _, . and - but is {name!r}")
        if options.name.count(name) > 1:
            raise UsageError(f"--name {name} is given twice: each model must have its own")
    if len(options.name) > 1 and options.number is not None:
        raise UsageError("--number must be of one model: serve others by processes of their own")
    if (options.tls_cert is None) != (options.tls_key is None):
        raise UsageError("--tls-cert and --tls-key must be given together")
    for file in (options.tls_cert, options.tls_key):
        if file is not None:
            file.read_bytes()  # an absent file gets its line now


def _read_token(file: Path | None) -> str | None:
    if file is None:
        return None
    token = file.read_text().strip()
    if not token or not token.isascii():
        raise UsageError(f"--token-file {file} must hold a token of ASCII characters")
    return token


def _parser(prog: str) -> command_line.Parser:
    parser = command_line.Parser(prog=prog, description=__doc__)
    parser.add_argument(
        "--model-dir",
        type=text,
        required=True,
        action="append",
        metavar="DIR",
        help="the directory that embedps train was given; once per model",
    )
    parser.add_argument(
        "--example-request",
        action="store_true",
        help="print the body of a REST request of two held-out records, and serve nothing",
    )
    parser.add_argument(
        "--name",
        type=text,
        default=[],
        action="append",
        metavar="NAME",
        help="the model's name in requests; once per --model-dir, in the same order",
    )
    port = number(int, least=0, most=_MAX_PORT)
    parser.add_argument(
        "--port", type=port, default=8500, metavar="N", help="of gRPC (default: 8500)"
    )
    parser.add_argument(
        "--rest-port", type=port, default=8501, metavar="N", help="of REST (default: 8501)"
    )
    parser.add_argument(
        "--host",
        type=text,
        default="127.0.0.1",
        help="the address to listen on; 0.0.0.0 is every one of the machine (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--follow",
        choices=("yes", "no"),
        default="yes",
        help="serve newer checkpoints as they are committed (default: yes)",
    )
    parser.add_argument(
        "--number",
        type=number(int, least=0, most=MAX_COUNT),
        metavar="N",
        help="serve this checkpoint and follow no other",
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="add the signature `raw`, which takes what the dataset was made of",
    )
    parser.add_argument(
        "--batch-rows",
        type=number(int, least=1, most=MAX_COUNT),
        default=1024,
        metavar="N",
        help="requests share a batch up to so many records (default: 1024)",
    )
    parser.add_argument(
        "--batch-wait-ms",
        type=number(float, least=0, most=1000),
        default=0.0,
        metavar="X",
        help="how long a request waits for others to share its batch (default: 0.0)",
    )
    parser.add_argument(
        "--top-k",
        type=number(int, least=1, most=_MAX_TOP_K),
        default=Ranking.default_k,
        metavar="N",
        help="items that a retrieval model gives a request that does not say how many (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--max-top-k",
        type=number(int, least=1, most=_MAX_TOP_K),
        default=Ranking.max_k,
        metavar="N",
        help="items that a request may ask for (default: %(default)s)",
    )
    parser.add_argument(
        "--items",
        choices=("rows", "dataset"),
        default=Ranking.items,
        help="rank the items that have a row, or all of the dataset as an evaluation does "
        "(default: %(default)s)",
    )
    unknown_queries.add_flag(parser)
    parser.add_argument(
        "--encode-rate",
        type=number(float, above=0, most=1e9),
        default=Ranking.encode_rate,
        metavar="X",
        help="items that are encoded per second at most, beside those that are ranked, when the "
        "item tower changes (default: %(default)s)",
    )
    parser.add_argument(
        "--ivf-above",
        type=number(int, least=0, most=MAX_COUNT),
        default=Ranking.ivf_above,
        metavar="N",
        help="more items than that are not all compared: an IVF of faiss finds candidates "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--ivf-recall",
        type=number(float, above=0, most=1),
        default=Ranking.ivf_recall,
        metavar="X",
        help="share of the exact best items that the IVF is tuned to find, by a sample of queries "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--max-waiting",
        type=number(int, least=1, most=_MAX_WAITING),
        default=64,
        metavar="N",
        help="requests per model that may wait; the next gets RESOURCE_EXHAUSTED (default: 64)",
    )
    parser.add_argument(
        "--grace-secs",
        type=number(float, least=0, most=3600),
        default=10.0,
        metavar="X",
        help="the longest wait for running requests at SIGTERM (default: 10.0)",
    )
    parser.add_argument(
        "--token-file",
        type=path,
        metavar="FILE",
        help="requests must carry this file's token: `authorization: Bearer TOKEN`",
    )
    parser.add_argument(
        "--tls-cert", type=path, metavar="FILE", help="certificate chain (PEM), for TLS"
    )
    parser.add_argument("--tls-key", type=path, metavar="FILE", help="its private key (PEM)")
    add_model_and_data(parser)
    return parser


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

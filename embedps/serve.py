"""Answers requests with the models of runs: `embedps serve --model-dir DIR --name NAME`.

It speaks TensorFlow Serving's API, over gRPC and REST, and follows the checkpoints of a run while
it trains: what a commit changed is seen a fraction of a second later. Each answer is of one
manifest, whose number is the version in it. Give --model-dir and --name again for another model.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from embedps.checkpoint.refs import number_of
from embedps.console import command_line, flags
from embedps.console.lines import log_as, say
from embedps.console.shutdown import stop_signals
from embedps.features.transforms import Transforms
from embedps.run.opened_run import OpenedRun, open_run
from embedps.serving.server.serve_config import ServeConfig

if TYPE_CHECKING:  # these import TensorFlow, which --help does not wait for
    from embedps.checkpoint.format.manifest import Manifest
    from embedps.serving.server.live_model import LiveModel
    from embedps.serving.server.model_api import ModelApi

__all__ = ["ServeConfig", "example_request", "main", "serve"]

_SWITCH_SECS = 0.0005
_EXAMPLE_ROWS = 2


def main(arguments: Sequence[str], prog: str = "python -m embedps.serve") -> int:
    """Serves until SIGTERM or Ctrl-C."""
    config = flags.read(ServeConfig, arguments, prog, __doc__)
    log_as(config.log_format)
    if config.example_request:
        print(example_request(config))
    else:
        serve(config)
    return 0


def serve(config: ServeConfig) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Raises:
      UsageError: a directory is not of a run, has no checkpoint, or an address cannot be had.
    """
    certificate, token = config.certificate(), config.token()
    runs = {
        name: _open(where, config)
        for name, where in zip(config.name, config.model_dir, strict=True)
    }
    # TensorFlow takes seconds to import; wrong flags and files are reported before that.
    from embedps.console.tf_logging import silence_native_stderr
    from embedps.serving.server import freed_memory
    from embedps.serving.server.descriptors import share_out
    from embedps.serving.server.grpc_server import GrpcServer
    from embedps.serving.server.model_api import ModelApi
    from embedps.serving.server.rest_server import RestServer

    freed_memory.keep()
    expected = {name: _first_number(run, config) for name, run in runs.items()}
    api, most = ModelApi(token=token, expected=expected), share_out()
    grpc_server = GrpcServer(
        api,
        host=config.host,
        port=config.port,
        max_waiting=config.batching.max_waiting,
        certificate=certificate,
        max_connections=most.grpc,
    )
    rest_server = RestServer(
        api,
        host=config.host,
        port=config.rest_port,
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
            for name, run in runs.items():
                _add(api, name, run, config)
            if not ended.is_set():
                api.health.set(True)
                names = ", ".join(
                    f"{m.name} ({f'{m.ref}: ' if m.ref else ''}checkpoint {m.standing.number})"
                    for m in api.served()
                )
                say(
                    f"serves {names} at {config.host}:{grpc_server.port} (gRPC) and "
                    f"{'https' if certificate else 'http'}://{config.host}:{rest_server.port}",
                )
            ended.wait()
        finally:
            api.health.set(False)
            with ThreadPoolExecutor() as both:
                for server in (grpc_server, rest_server):
                    both.submit(server.stop, config.grace_secs)
            for shadow in api.shadows.values():
                shadow.close()
            for model in api.served():
                model.close()


def example_request(config: ServeConfig) -> str:
    """Makes the body of a REST request for two records that the config's model can score."""
    (where,) = config.model_dir
    run = _open(where, config)
    from embedps.evaluation.loaded_model import load_from
    from embedps.serving.server.json_bodies import body_of
    from embedps.serving.server.live_model import sample_records

    model = load_from(
        run,
        number=config.ref[0] if config.ref else config.number,
        uncalibrated=config.uncalibrated,
        tells=False,
    )
    return body_of(sample_records(run.dataset, model.columns).slice(0, _EXAMPLE_ROWS))


def _open(model_dir: str, config: ServeConfig) -> OpenedRun:
    run = open_run(model_dir, data=config.data, model=config.model)
    if not run.directory.numbers():  # a damaged one is reported later: others may be whole
        raise run.has_none()
    if config.number is not None:
        run.directory.read(config.number)
    for ref in config.ref:
        run.directory.read(number_of(run.directory, ref))
    if config.shadow is not None:
        number_of(run.directory, config.shadow)  # a damaged one is said later: answers go on
    return run


def _first_number(run: OpenedRun, config: ServeConfig) -> int:
    """Returns the number of the manifest that requests without a version get first."""
    given = config.ref[0] if config.ref else config.number
    return max(run.directory.numbers()) if given is None else number_of(run.directory, given)


def _add(api: ModelApi, name: str, run: OpenedRun, config: ServeConfig) -> None:
    from embedps.serving.server.live_model import LiveModel
    from embedps.serving.server.served_model import ServedModel
    from embedps.serving.server.shadow import Shadow

    first = run.manifest(_first_number(run, config))
    recommender = run.calibrated(first, uncalibrated=config.uncalibrated)
    layer = recommender.calibration
    if layer is not None and layer.checkpoint is not None and config.follow:
        say(f"{name}: checkpoints after {first.number} are served with this calibration too")
    transforms = Transforms.of(run.dataset) if config.raw else None
    memory = config.memory()

    def make(manifest: Manifest) -> LiveModel:
        return LiveModel(
            recommender,
            run.dataset,
            run.directory,
            manifest,
            ranking=config.ranking,
            transforms=transforms,
            seed=run.seed,
            memory=memory,
        )

    def served(ref: str | None) -> ServedModel:
        return ServedModel(
            name,
            run.directory,
            make,
            number=None if ref else config.number,
            ref=ref,
            follows=config.follow,
            batching=config.batching,
            on_batch=api.metrics.count_batch(name, ref or ""),
        )

    for ref in reversed(config.ref or (None,)):  # the first last: then the name is served
        model = served(ref)
        if ref is not None:
            api.refs[name, ref] = model
    api.models[name] = model
    if config.shadow is not None:
        api.shadows[name] = Shadow(
            name,
            partial(served, config.shadow),
            share=config.shadow_share,
            counts=api.metrics.shadow_counts(name, config.shadow),
            log=config.shadow_log,
        )


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))

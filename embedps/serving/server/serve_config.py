"""What a server serves, where and how; each option is a flag of `embedps serve`."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from embedps.checkpoint.refs import check_name
from embedps.config_fields import MAX_COUNT, option, section
from embedps.errors import UsageError
from embedps.run.memory_options import MemoryOptions
from embedps.run.monitoring_config import LogFormat, log_format_option
from embedps.run.opened_run import ModelOptions, uncalibrated_option
from embedps.serving.server.batching import Batching
from embedps.serving.server.ranking import Ranking

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_MAX_PORT = 65535


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig(MemoryOptions, ModelOptions):
    """The models of a server, its addresses, and the groups of its other options."""

    model_dir: tuple[str, ...] = option(
        dataclasses.MISSING,
        "the directory that embedps train was given; once per model",
        metavar="DIR",
        several=True,
    )
    name: tuple[str, ...] = option(
        (),
        "the model's name in requests; once per --model-dir, in the same order",
        metavar="NAME",
        several=True,
    )
    example_request: bool = option(
        False, "print the body of a REST request of two held-out records, and serve nothing"
    )
    port: int = option(8500, "of gRPC", least=0, most=_MAX_PORT)
    rest_port: int = option(8501, "of REST", least=0, most=_MAX_PORT)
    host: str = option(
        "127.0.0.1",
        "the address to listen on; 0.0.0.0 is every one of the machine",
        metavar="HOST",
    )
    follow: bool = option(True, "serve newer checkpoints as they are committed")
    number: int | None = option(
        None, "serve this checkpoint and follow no other", metavar="N", least=0, most=MAX_COUNT
    )
    ref: tuple[str, ...] = option(
        (),
        "serve and follow what these refs name; a request names one as its version label, or gets "
        "the first",
        metavar="REF",
        several=True,
    )
    shadow: str | None = option(
        None,
        "a ref that scores a share of the requests too; the differences go to the metrics and to "
        "--shadow-log, the answers stay",
        metavar="REF",
    )
    shadow_share: float = option(0.1, "of the requests that --shadow scores", above=0, most=1)
    shadow_log: Path | None = option(
        None, "a file that gets both predictions of each such request, a line of JSON each"
    )
    raw: bool = option(False, "add the signature `raw`, which takes what the dataset was made of")
    uncalibrated: bool = uncalibrated_option()
    log_format: LogFormat = log_format_option()
    batching: Batching = section(Batching)
    ranking: Ranking = section(Ranking)
    grace_secs: float = option(
        10.0, "the longest wait for running requests at SIGTERM", least=0, most=3600
    )
    token_file: Path | None = option(
        None, "requests must carry this file's token: `authorization: Bearer TOKEN`"
    )
    tls_cert: Path | None = option(None, "certificate chain (PEM), for TLS")
    tls_key: Path | None = option(None, "its private key (PEM)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.example_request:
            if len(self.model_dir) != 1:
                raise UsageError("--example-request is of one model: give one --model-dir")
            return
        for ref in self.ref:
            if self.ref.count(check_name(ref)) > 1:
                raise UsageError(f"--ref {ref} is given twice: requests name each ref by its name")
        if self.ref and self.number is not None:
            raise UsageError("--ref follows and --number does not: give one of them")
        if self.shadow is not None and check_name(self.shadow) in self.ref:
            raise UsageError(f"--shadow {self.shadow} must be another ref than those of --ref")
        if self.shadow is None and self.shadow_log is not None:
            raise UsageError("--shadow-log needs --shadow REF")
        if self.shadow_log is not None and not self.shadow_log.parent.is_dir():
            raise UsageError(
                f"--shadow-log must be a file in a directory that is there but is {self.shadow_log}"
            )
        if len(self.model_dir) != len(self.name):
            raise UsageError(
                f"each --model-dir must have a --name but there are {len(self.model_dir)} and "
                f"{len(self.name)}"
            )
        for name in self.name:
            if not _NAME.fullmatch(name):
                raise UsageError(f"--name must have letters, digits, _, . and - but is {name!r}")
            if self.name.count(name) > 1:
                raise UsageError(f"--name {name} is given twice: each model must have its own")
        if len(self.name) > 1 and self.number is not None:
            raise UsageError(
                "--number must be of one model: serve others by processes of their own"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("--tls-cert and --tls-key must be given together")

    def certificate(self) -> tuple[Path, Path] | None:
        """Gives the files of TLS, if there are any.

        Raises:
          OSError: one of them cannot be read.
        """
        if self.tls_cert is None or self.tls_key is None:
            return None
        for file in (self.tls_cert, self.tls_key):
            file.read_bytes()
        return self.tls_cert, self.tls_key

    def token(self) -> str | None:
        """Reads the token that requests must carry, if there is one.

        Raises:
          UsageError: the file holds no token.
          OSError: it cannot be read.
        """
        if self.token_file is None:
            return None
        token = self.token_file.read_text().strip()
        if not token or not token.isascii():
            raise UsageError(
                f"--token-file {self.token_file} must hold a token of ASCII characters"
            )
        return token

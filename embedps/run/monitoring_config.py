"""The options of what an operator sees of a process: its metrics, and the form of its log."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from embedps.config_fields import check, option

LogFormat = Literal["text", "json"]


def log_format_option() -> Any:
    """Declares the option of a command's log."""
    return option("text", "lines of text, or a JSON object per line: its time, level and event")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonitoringConfig:
    """What an operator sees of a run, or of a server of its cluster."""

    metrics_port: int | None = option(
        None,
        "answer Prometheus at this port, at /metrics; 0 takes a free one (default: none)",
        least=0,
        most=65535,
    )
    metrics_host: str = option("127.0.0.1", "the address of the port", metavar="ADDRESS")
    log_format: LogFormat = log_format_option()

    def __post_init__(self) -> None:
        check(self)

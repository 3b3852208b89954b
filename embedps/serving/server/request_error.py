"""Why a request is refused, by gRPC's name of the code."""

from __future__ import annotations

from typing import Literal

from embedps.errors import EmbedpsError, printable

Code = Literal[
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "UNAUTHENTICATED",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "DATA_LOSS",
    "INTERNAL",
    "CANCELLED",
]


MAX_TEXT_BYTES = 1000  # gRPC's trailers have 8 kB, and write a byte that is no ASCII as three


class RequestError(EmbedpsError):
    """A request gets an error for its answer; the server goes on.

    Attributes:
      code: of gRPC, by name.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(short_text(message))
        self.code: Code = code


def short_text(message: str) -> str:
    """Makes a line of at most MAX_TEXT_BYTES: a request may choose names that a message quotes.

    The middle goes: what must hold is at the front, and what to do at the end.
    """
    half = MAX_TEXT_BYTES // 2 - 3
    if len(message) > 2 * MAX_TEXT_BYTES:  # escapes make it longer, not shorter
        message = message[:MAX_TEXT_BYTES] + message[-MAX_TEXT_BYTES:]
    line = printable(message)
    data = line.encode()
    if len(data) <= MAX_TEXT_BYTES:
        return line
    return f"{data[:half].decode(errors='ignore')} ... {data[-half:].decode(errors='ignore')}"


def invalid(message: str) -> RequestError:
    """Makes the error of a malformed request."""
    return RequestError("INVALID_ARGUMENT", message)

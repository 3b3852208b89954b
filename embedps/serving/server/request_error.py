"""Why a request is refused, by gRPC's name of the code."""

from __future__ import annotations

from typing import Literal

from embedps.errors import EmbedpsError

Code = Literal[
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "UNAUTHENTICATED",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "INTERNAL",
]


class RequestError(EmbedpsError):
    """A request gets an error for its answer; the server goes on.

    Attributes:
      code: of gRPC, by name.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code


def invalid(message: str) -> RequestError:
    """Makes the error of a malformed request."""
    return RequestError("INVALID_ARGUMENT", message)


def no_labels(label: str) -> RequestError:
    """Makes the error of a request that names a version by a label."""
    return invalid(f"versions have no labels, but {label!r} is given: name the manifest's number")

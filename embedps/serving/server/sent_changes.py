"""Sends the changes of a served model's tables to readers that see none of its files."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator

from embedps.checkpoint.chain import Position
from embedps.checkpoint.changes import messages_of, waiting_message
from embedps.checkpoint.follow import advances
from embedps.checkpoint.follow_served import METHOD
from embedps.checkpoint.refs import number_of
from embedps.errors import CheckpointError, CorruptCheckpointError, UsageError
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.request_error import RequestError, invalid

FOLLOW_SERVICE = METHOD.split("/")[1]
_MAX_REQUEST_BYTES = 1 << 16


class SentChanges:
    """Answers calls of `embedps.follow`, each from a position on."""

    def __init__(self, api: ModelApi, *, most: int) -> None:
        """Has no reader yet.

        Args:
          api: has the models.
          most: readers at a time.
        """
        self._api, self._most = api, most
        self._lock = threading.Lock()
        self._readers: set[threading.Event] = set()
        self._has_ended = False

    def end(self) -> None:
        """Ends all calls, and takes no more; readers ask again."""
        with self._lock:
            self._has_ended = True
            for stop in self._readers:
                stop.set()

    def messages(
        self, request: bytes, on_end: Callable[[Callable[[], None]], bool]
    ) -> Iterator[bytes]:
        """Yields the messages of the changes, until the run's last checkpoint or the call's end.

        Args:
          request: JSON of the model's name, a ref or null, and a position's text or null.
          on_end: takes what is called when nobody waits for more; False if that is so already.

        Raises:
          RequestError: the request is wrong, or there is no place, or a file cannot be read.
        """
        name, ref, position = _read(request)
        directory = self._api.model(name).directory
        stop = threading.Event()
        with self._lock:
            if self._has_ended:
                raise RequestError("UNAVAILABLE", "the server ends: ask again")
            if len(self._readers) >= self._most:
                raise RequestError("RESOURCE_EXHAUSTED", f"{self._most} readers follow already")
            self._readers.add(stop)
        try:
            if not on_end(stop.set):
                return  # it has ended already
            if ref is not None:
                number_of(directory, ref)
            moves = advances(directory, position, ref=ref, idle_secs=math.inf, stop=stop)
            for move in moves:
                if move is None:
                    yield waiting_message()
                    continue
                advance, changes = move
                yield from messages_of(advance.manifest, changes)
                if advance.manifest.final and ref is None:
                    return
        except CorruptCheckpointError as error:
            raise RequestError("DATA_LOSS", str(error)) from error
        except UsageError as error:  # the ref
            raise RequestError("NOT_FOUND", str(error)) from error
        except CheckpointError as error:
            raise RequestError("UNAVAILABLE", str(error)) from error
        finally:
            with self._lock:
                self._readers.discard(stop)
        raise RequestError("UNAVAILABLE", "the server ends: ask again")


def _read(request: bytes) -> tuple[str, str | None, Position | None]:
    if len(request) > _MAX_REQUEST_BYTES:
        raise invalid(f"the message must have at most {_MAX_REQUEST_BYTES} bytes")
    try:
        content = json.loads(request)
        name, ref, at = (content[key] for key in ("model", "ref", "position"))
        position = None if at is None else Position.from_json(at)
    except (ValueError, TypeError, KeyError, RecursionError, CheckpointError) as error:
        raise invalid(f"the message must be JSON of model, ref and position: {error}") from error
    if not isinstance(name, str) or not isinstance(ref, str | None):
        raise invalid("the model and the ref must be texts")
    return name, ref, position

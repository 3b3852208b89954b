"""The answers of TensorFlow Serving's API, for gRPC and REST alike: predict, metadata, status."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from embedps.serving.server import messages
from embedps.serving.server.batcher import Answer
from embedps.serving.server.health import Health
from embedps.serving.server.live_items import QUERY
from embedps.serving.server.live_model import LiveModel
from embedps.serving.server.metrics import ServerMetrics
from embedps.serving.server.request_error import RequestError, invalid, short_text
from embedps.serving.server.request_reader import UsualRequest
from embedps.serving.server.request_size import Place, Room
from embedps.serving.server.requests import Format, Request
from embedps.serving.server.served_model import ServedModel
from embedps.serving.server.shadow import Shadow

SIGNATURE = "serving_default"
TOP_K = "top_k"
TOP_K_EXAMPLES = f"{TOP_K}_examples"
_PREDICT_METHOD = "tensorflow/serving/predict"


class ModelApi:
    """Models by name, and what is counted of their requests."""

    def __init__(
        self, *, token: str | None = None, expected: Mapping[str, int] | None = None
    ) -> None:
        """Starts without models; `models` gets those that answer requests without a version label.

        Those of each label, also of the first, are in `refs` by name and ref, before their name is
        in `models`. `shadows` compares answers of those in `models`, by name.

        Args:
          token: that each request must carry; None lets all in.
          expected: the models that will be served, and the versions that they load.
        """
        self._expected = expected or {}
        self.room = Room()
        self.models: dict[str, ServedModel] = {}
        self.refs: dict[tuple[str, str], ServedModel] = {}
        self.health = Health()
        self._token = token
        self.shadows: dict[str, Shadow] = {}
        self.metrics = ServerMetrics(self._measured)

    @contextmanager
    def counting(self, api: str) -> Iterator[None]:
        """Counts a request by its code, and how long it takes.

        Raises:
          RequestError: as the block does; another error becomes INTERNAL.
        """
        began, code = time.monotonic(), "OK"
        try:
            yield
        except RequestError as error:
            code = error.code
            raise
        except Exception as error:
            code = "INTERNAL"
            raise RequestError("INTERNAL", f"{type(error).__name__}: {error}") from error
        finally:
            self.metrics.count_request(api, code, time.monotonic() - began)

    def check_token(self, authorization: str | None) -> None:
        """Checks the header "authorization: Bearer TOKEN".

        Raises:
          RequestError: the server has a token and the request another or none.
        """
        wanted = "" if self._token is None else f"Bearer {self._token}"
        given = authorization or ""
        if wanted and not hmac.compare_digest(given.encode(errors="replace"), wanted.encode()):
            raise RequestError(
                "UNAUTHENTICATED", "a request must have the header `authorization: Bearer TOKEN`"
            )

    def served(self, name: str | None = None) -> list[ServedModel]:
        """Lists what is served, under a name or under all."""
        models = dict.fromkeys([*self.models.values(), *self.refs.values()])
        return [m for m in models if name in (None, m.name)]

    def _measured(self) -> list[ServedModel]:
        shadows = [shadow.model for shadow in list(self.shadows.values())]
        return [*self.served(), *(model for model in shadows if model is not None)]

    def model(self, name: str, version: int | str | None = None) -> ServedModel:
        """Finds a model: by its label, or that of a version if it is served.

        Raises:
          RequestError: there is none of this name, or not yet, or it has no such label.
        """
        if name not in self.models:
            if self.is_loading(name):
                raise RequestError(
                    "UNAVAILABLE", f"model {name!r} is not loaded: ask again once the server serves"
                )
            served = ", ".join(map(repr, self._expected or self.models))
            raise RequestError("NOT_FOUND", f"no model is named {name!r}: there are {served}")
        if isinstance(version, str):
            if (name, version) not in self.refs:
                labels = ", ".join(ref for of, ref in list(self.refs) if of == name)
                there = f"its labels are {labels}" if labels else "--ref of the server gives labels"
                raise invalid(f"model {name!r} has no version label {version!r}: {there}")
            return self.refs[name, version]
        found = (m for m in self.served(name) if version == m.standing.number)
        return self.models[name] if version is None else next(found, self.models[name])

    def is_loading(self, name: str) -> bool:
        """Tells whether a model will be served."""
        return name in self._expected and name not in self.models

    def forms(self, name: str | None = None, signature: str | None = None) -> list[Format]:
        """Gives the formats of a model's requests by one signature, or those of all of them."""
        models = [m for m in list(self.models.values()) if name in (None, m.name)]
        wanted = None if signature is None else signature or SIGNATURE
        return [f for m in models for s, f in _formats(m).items() if wanted in (None, s)]

    def usual_request(self, name: str, signature: str, data: bytes) -> UsualRequest | None:
        """Finds the columns of a PredictRequest in its usual form; None if it is in another."""
        model = self.models.get(name)
        reader = None if model is None or signature not in ("", SIGNATURE) else model.model.reader
        return None if reader is None else reader.find(data)

    def predict(
        self,
        name: str,
        read: Callable[[Format, Place], Request],
        *,
        version: int | str | None,
        signature: str,
        wanted: Sequence[str] = (),
        timeout: float | None = None,
    ) -> Answer:
        """Scores records.

        Args:
          read: reads the request; it takes the place before it makes arrays.
          version: the number of the manifest that must answer, or its label; None takes any.
          signature: of the request; empty is the default one.
          wanted: the predictions to give; none means all.
          timeout: seconds until nobody waits for the answer any more.

        Raises:
          RequestError: the request is not of this model, or cannot be answered now.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        secs_left(deadline)
        model = self.model(name, version)
        forms = _formats(model)
        form = forms.get(signature or SIGNATURE)
        if form is None:
            raise invalid(f"the signature must be {' or '.join(forms)} but is {signature!r}")
        _check_version(model, version)  # before it waits; it may change meanwhile
        with self.room.place() as place:
            request = read(form, place)
            ask = _ask_of(model, signature)
            answer = ask(request, secs_left(deadline))
        if isinstance(version, int) and answer.number != version:
            raise _other_version(model, version, answer.number)
        shadow = self.shadows.get(name)
        if shadow is not None and model is self.models[name] and ask == model.ask:
            shadow.offer(request, answer)
        if unknown := [each for each in wanted if each not in answer.outputs]:
            raise invalid(
                f"output_filter must name predictions ({', '.join(answer.outputs)}) but names "
                f"{unknown[0]!r}"
            )
        outputs = {n: v for n, v in answer.outputs.items() if not wanted or n in wanted}
        return Answer(number=answer.number, outputs=outputs)

    def metadata(self, name: str, version: int | str | None = None) -> tuple[int, Any]:
        """Gives a version and its SignatureDefMap.

        Raises:
          RequestError: there is no such model or version.
        """
        model = self.model(name, version)
        number = _check_version(model, version)
        made = messages.SignatureDefMap()
        for kind, form in _formats(model).items():
            signature = made.signature_def[kind]
            signature.method_name = _PREDICT_METHOD
            outputs = _output_specs(model.model, kind)
            for given, specs in ((signature.inputs, form.specs), (signature.outputs, outputs)):
                for tensor, spec in specs.items():
                    given[tensor].name = f"{tensor}:0"
                    given[tensor].dtype = spec.dtype.as_datatype_enum
                    for size in spec.shape:
                        given[tensor].tensor_shape.dim.add(size=-1 if size is None else size)
        return number, made

    def status(self, name: str, version: int | str | None = None) -> Any:
        """Gives a GetModelStatusResponse: manifests that are served, and newer ones that failed.

        Before that it is LOADING, and UNLOADING once the server ends. If newer ones cannot be
        looked for, the served one's message says why.

        Raises:
          RequestError: there is no such model or version.
        """
        response = messages.GetModelStatusResponse()
        if self.is_loading(name):
            number = self._expected[name]
            loading = response.model_version_status.add(version=number, state="LOADING")
            loading.status.error_code = "OK"
            return response
        model = self.model(name, version)
        for each in [model] if isinstance(version, str) else self.served(name):
            self._add_status(each, response.model_version_status)
        if isinstance(version, int):
            if version not in [each.version for each in response.model_version_status]:
                raise _other_version(model, version, model.standing.number)
            for i in reversed(range(len(response.model_version_status))):
                if response.model_version_status[i].version != version:
                    del response.model_version_status[i]
        return response

    def _add_status(self, model: ServedModel, statuses: Any) -> None:
        """Adds the version that is served, unless it is there, and one that failed."""
        refusal, number = model.refusal, model.standing.number
        served = next((each for each in statuses if each.version == number), None)
        if served is None:
            state = "UNLOADING" if self.health.has_ended else "AVAILABLE"
            served = statuses.add(version=number, state=state)
            served.status.error_code = "OK"
        if refusal is not None and (refusal.number is None or refusal.number < served.version):
            served.status.error_message = short_text(refusal.message)
        elif refusal is not None:
            failed = statuses.add(version=refusal.number, state="END")
            failed.status.error_code = "DATA_LOSS"
            failed.status.error_message = short_text(refusal.message)


def secs_left(deadline: float | None) -> float | None:
    """Gives the seconds until a deadline, by `time.monotonic`.

    Raises:
      RequestError: it passed, so nobody waits for what would be done.
    """
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        raise RequestError("DEADLINE_EXCEEDED", "the request's deadline passed")
    return left


def _formats(model: ServedModel) -> dict[str, Format]:
    """Gives the formats of a model's requests by signature."""
    live = model.model
    formats: dict[str, Format] = {SIGNATURE: live.format, **live.made}
    if live.items is not None:
        formats |= {QUERY: live.items.format.query, TOP_K: live.items.format}
        formats[TOP_K_EXAMPLES] = live.items.examples
    return formats


def _ask_of(model: ServedModel, signature: str) -> Callable[[Request, float | None], Answer]:
    if signature in (TOP_K, TOP_K_EXAMPLES):
        return model.rank
    return model.encode if signature == QUERY else model.ask


def _output_specs(live: LiveModel, signature: str) -> Mapping[str, tf.TensorSpec]:
    if signature in (TOP_K, TOP_K_EXAMPLES):
        return live.top_k_specs
    return live.query_specs if signature == QUERY else live.output_specs


def _check_version(model: ServedModel, version: int | str | None) -> int:
    served = model.standing.number
    if isinstance(version, int) and version != served:
        raise _other_version(model, version, served)
    return served


def _other_version(model: ServedModel, version: int, served: int) -> RequestError:
    return RequestError(
        "NOT_FOUND", f"model {model.name!r} is served as version {served}, not {version}"
    )

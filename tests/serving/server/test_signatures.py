"""The signatures are those of the export: tf.Examples and raw values get the same scores."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.features.transforms import Transforms
from embedps.serving.export_model import export_model
from embedps.serving.server import messages
from tests.builders import latest, make_config
from tests.pipelines.shop import RAW_NAMES, as_texts, make_raw, make_records
from tests.processors import check_stock
from tests.serving.builders import examples, raw_request
from tests.serving.server.builders import Client, ask_rest, predict_request, score_of, serving
from tests.serving.warm_up_replay import replay
from tools.fuzz_seeds import SEEDS


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_raw(tmp_path_factory.mktemp("raw"))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    path = tmp_path_factory.mktemp("run") / "m"
    config = make_config(dataset, path, model="logistic_regression")
    embedps.Trainer.from_config(config).fit()
    return path


def refusal(client: Client, request: Any) -> str:
    with pytest.raises(grpc.RpcError) as refused:
        client.predict(request)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    return str(refused.value.details())


@pytest.mark.slow
def test_signatures_are_those_of_the_export(
    tmp_path: Path, dataset: Dataset, model_dir: Path
) -> None:
    directory, transforms = CheckpointDirectory(model_dir), Transforms.load(dataset.directory)
    loaded = embedps.load(model_dir)
    recommender = loaded._model.recommender
    exported = export_model(
        recommender,
        dataset,
        directory,
        tmp_path,
        latest(model_dir).number,
        top_k=1,
        table=transforms.table,
    )
    export = tf.saved_model.load(str(exported.path))
    assert replay(exported.path) == dict.fromkeys(export.signatures, 2)
    records = make_records(40)
    features = transforms.apply(as_texts(records, RAW_NAMES))
    want = loaded.predict(features)["score"]
    with serving(directory, dataset, transforms=transforms) as (api, _, addresses):
        # The same names, dtypes and shapes.
        _, told = api.metadata("clicks")
        assert set(told.signature_def) == set(export.signatures)
        for name, signature in told.signature_def.items():
            _, inputs = export.signatures[name].structured_input_signature
            outputs = export.signatures[name].structured_outputs
            for given, specs in ((signature.inputs, inputs), (signature.outputs, outputs)):
                assert {n: t.dtype for n, t in given.items()} == {
                    n: s.dtype.as_datatype_enum for n, s in specs.items()
                }
                assert all([d.size for d in t.tensor_shape.dim] == [-1] for t in given.values())
        client = addresses.client
        # tf.Examples; what is missing is left out.
        serialized = examples(pa.Table.from_batches([features]), loaded.columns)
        response = client.predict(predict_request(serialized, signature="examples"))
        assert response.model_spec.signature_name == "examples"
        np.testing.assert_array_equal(score_of(response), want)
        # Raw values: the export's bits; one row counts for all.
        given = raw_request(records)
        response = client.predict(predict_request(given, signature="raw"))
        bits = export.signatures["raw"](**{n: tf.constant(v) for n, v in given.items()})["score"]
        check_stock(score_of(response), bits)
        np.testing.assert_allclose(score_of(response), want, rtol=1e-6)
        one = {**given, **{n: given[n][:1] for n in ("time", "site", "price")}}
        many = {**given, **{n: np.repeat(given[n][:1], 40) for n in ("time", "site", "price")}}
        found = [client.predict(predict_request(each, signature="raw")) for each in (one, many)]
        np.testing.assert_array_equal(score_of(found[0]), score_of(found[1]))
        check_rest(addresses.rest, serialized["examples"], given, want, score_of(response))
        # What cannot be read is refused.
        claims = (SEEDS / "example" / "found-floats-of-17-gb.bin").read_bytes()
        for broken in (b"\xff\xff", b"abc", claims[1:]):
            several = np.array([serialized["examples"][0], broken], object)
            said = refusal(client, predict_request({"examples": several}, signature="examples"))
            assert f"value 1 of 'examples', of {len(broken)} bytes, must be a serialized" in said
        wrong = predict_request({**given, "site": np.array([b"xyz"] * 40, object)}, signature="raw")
        assert "must have hexadecimal ids of 64 bits" in refusal(client, wrong)
        lengths = {**given, "pages_lengths": np.full(40, 3)}
        assert "cannot be read" in refusal(client, predict_request(lengths, signature="raw"))
        said = refusal(client, predict_request({"C1": np.zeros(1)}, signature="examples"))
        assert "must have the tensors examples but lacks examples and has C1" in said
        said = refusal(client, predict_request(given, signature="classify"))
        assert "the signature must be serving_default or examples or raw" in said
        # The least of an unknown field is skipped.
        data = predict_request(given, signature="raw").SerializeToString() + b"\xf8\x07\x01"
        assert messages.PredictRequest.FromString(data).inputs


def check_rest(
    rest: str, serialized: Any, given: dict[str, np.ndarray], want: Any, raw: Any
) -> None:
    """TensorFlow Serving's forms: rows and columns, values of the only input, bytes in Base64."""
    url = f"{rest}/v1/models/clicks:predict"
    values = [{"b64": base64.b64encode(each).decode()} for each in serialized]
    for kind, answered, form in (
        ("instances", "predictions", values),
        ("instances", "predictions", [{"examples": value} for value in values]),
        ("inputs", "outputs", values),
        ("inputs", "outputs", {"examples": values}),
    ):
        code, found = ask_rest(url, {"signature_name": "examples", kind: form})
        assert (code, np.float32(found[answered]).tolist()) == (200, want.tolist())
    lists = {
        name: [v.decode() if isinstance(v, bytes) else v for v in array.tolist()]
        for name, array in given.items()
    }
    code, found = ask_rest(url, {"signature_name": "raw", "inputs": lists})  # with NaN tokens
    assert (code, np.float32(found["outputs"]).tolist()) == (200, raw.tolist())
    rows = []
    starts = {n: np.cumsum([0, *given[f"{n}_lengths"]]) for n in ("pages", "wishes")}
    for i in range(len(raw)):
        row = {n: v[i] for n, v in lists.items() if n not in starts and "_lengths" not in n}
        row |= {n: lists[n][at[i] : at[i + 1]] for n, at in starts.items()}
        rows.append(row)
    code, found = ask_rest(url, {"signature_name": "raw", "instances": rows})
    assert (code, np.float32(found["predictions"]).tolist()) == (200, raw.tolist())
    for value in (7, {"b64": "?"}, {"b64": 7}, None):
        code, said = ask_rest(url, {"signature_name": "examples", "instances": [value]})
        assert code == 400
        assert "'examples' must hold texts, or bytes as" in said

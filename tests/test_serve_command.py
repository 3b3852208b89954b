"""`embedps serve`: a process answers over gRPC and REST, refuses mistakes by a line, and drains."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps import serve
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.refs import move_ref
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.models import two_tower
from embedps.serving.server import messages
from tests.builders import (
    COLUMNS,
    ROOT,
    latest,
    make_config,
    read_split,
)
from tests.commands import finish, read_until, run, start
from tests.models import planted_interactions
from tests.pages import blocks
from tests.serving.builders import tensors
from tests.serving.server.builders import Client, ask_rest, predict_request, score_of, serving


def ports(line: str) -> tuple[str, str]:
    """The addresses of gRPC and REST in the line that says what is served."""
    words = line.split()
    return words[words.index("at") + 1], words[-1]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a retrieval model."""
    path = tmp_path_factory.mktemp("films")
    users = planted_interactions.write_dataset(path / "data")
    towers = two_tower.Config(embedding_dim=8, history="history")
    config = make_config(users, path / "m", model="two_tower", eval="none")
    embedps.Trainer.from_config(config, towers).fit()
    return path / "m"


def example_request(model_dir: Path, capsys: Any) -> str:
    """What the command prints."""
    capsys.readouterr()
    assert command_line.run(serve.main, ["--model-dir", str(model_dir), "--example-request"]) == 0
    return str(capsys.readouterr().out)


def test_an_example_request_has_every_column_and_is_answered(
    history: Path, clicks: Dataset, scores: Callable[[int], np.ndarray], capsys: Any
) -> None:
    body = example_request(history, capsys)
    config = serve.ServeConfig(model_dir=(str(history),), example_request=True)
    assert serve.example_request(config) == body.rstrip("\n")
    rows = json.loads(body)["instances"]
    assert len(rows) == 2
    assert all(sorted(row) == sorted(COLUMNS) for row in rows)
    with serving(CheckpointDirectory(history), clicks) as (_, _, addresses):
        code, found = ask_rest(f"{addresses.rest}/v1/models/clicks:predict", body.encode())
    want = scores(latest(history).number)[:2]
    assert (code, np.float32(found["predictions"]).tolist()) == (200, want.tolist())


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_quickstarts_curl_asks_a_ranking_and_a_retrieval_model(
    tmp_path: Path, history: Path, films: Path, capsys: Any
) -> None:
    """As it is printed but for the port: also while the server still loads the models."""
    page = blocks(ROOT / "docs" / "quickstart.md")
    (code,) = (block.code for block in page if "--example-request" in block.code)
    (line,) = (line for line in code.splitlines() if line.startswith("curl"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = start(
        "embedps.serve",
        *("--model-dir", str(history), "--name", "clicks"),
        *("--model-dir", str(films), "--name", "films"),
        *("--port", "0", "--rest-port", str(port)),
    )
    for name, run_dir in (("clicks", history), ("films", films)):
        (tmp_path / "request.json").write_text(example_request(run_dir, capsys))
        asked = line.replace("localhost:8501", f"localhost:{port}").replace("clicks", name)
        done = subprocess.run(
            ["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        predictions = json.loads(done.stdout)["predictions"]
        assert len(predictions) == 2
        assert np.isfinite(tf.nest.flatten(predictions)).all()
    process.send_signal(signal.SIGTERM)
    finish(process)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_process_answers_and_drains(
    tmp_path: Path, clicks: Dataset, copied: Path, scores: Callable[[int], np.ndarray]
) -> None:
    directory = CheckpointDirectory(copied)
    move_ref(directory, "canary", directory.numbers()[0])
    token = tmp_path / "token"
    token.write_text("secret\n")
    process = start(
        "embedps.serve",
        *("--model-dir", str(copied), "--name", "clicks"),
        *("--model-dir", str(copied), "--name", "other"),
        *("--port", "0", "--rest-port", "0", "--token-file", str(token)),
        *("--shadow", "canary", "--shadow-share", "1", "--shadow-log", str(tmp_path / "log")),
    )
    number = latest(copied).number
    line = read_until(process, "serves ").splitlines()[-1]
    assert f"serves clicks (checkpoint {number}), other (checkpoint {number}) at" in line
    address, rest = ports(line)
    table = read_split(clicks).slice(0, 20)
    want = scores(number)[:20]
    given = tensors(table)
    client, allowed = Client(address), {"metadata": [("authorization", "Bearer secret")]}
    for name in ("clicks", "other"):
        response = client.predict(predict_request(given, name=name), **allowed)
        np.testing.assert_array_equal(score_of(response), want)
        assert response.model_spec.version.value == number
        url = f"{rest}/v1/models/{name}"
        lists = {name: [None if x != x else x for x in a.tolist()] for name, a in given.items()}
        code, found = ask_rest(f"{url}:predict", {"inputs": lists}, "secret")
        assert (code, np.float32(found["outputs"]).tolist()) == (200, want.tolist())
        rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
        body = {"signature_name": "serving_default", "instances": rows}
        code, found = ask_rest(f"{url}/versions/{number}:predict", body, "secret")
        assert (code, np.float32(found["predictions"]).tolist()) == (200, want.tolist())
    # What it tells of itself.
    code, found = ask_rest(f"{url}", token="secret")
    assert found["model_version_status"][0]["version"] == str(number)
    assert found["model_version_status"][0]["state"] == "AVAILABLE"
    code, found = ask_rest(f"{url}/metadata", token="secret")
    signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert sorted(signature["inputs"]) == sorted(COLUMNS)
    assert signature["outputs"]["score"]["dtype"] == "DT_FLOAT"
    request = messages.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "clicks"
    kind = messages.GetModelMetadataResponse
    service = messages.PREDICTION_SERVICE
    answered = client.call(service, "GetModelMetadata", request, kind, **allowed)
    packed = answered.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    made = messages.SignatureDefMap.FromString(packed.value)
    assert sorted(made.signature_def["serving_default"].inputs) == sorted(COLUMNS)
    code, text = ask_rest(f"{rest}/metrics", token="secret")
    assert f'embedps_manifest_number{{model="clicks",ref=""}} {number}' in text
    assert 'embedps_requests_total{api="grpc",code="OK"} 3' in text
    assert f'embedps_batch_rows_sum{{model="other",ref=""}} {3 * 20}' in text
    for name in ("clicks", "other"):
        for outcome in ("scored", "dropped", "failed"):
            of = f'{{model="{name}",outcome="{outcome}",ref="canary"}}'
            assert f"embedps_shadow_requests_total{of} " in text
    # Health needs no token; all else does.
    healthy = client.call(
        messages.HEALTH_SERVICE,
        "Check",
        messages.HealthCheckRequest(),
        messages.HealthCheckResponse,
    )
    assert healthy.status == 1
    assert ask_rest(f"{rest}/healthz")[0] == 200
    assert ask_rest(f"{url}")[0] == ask_rest(f"{rest}/metrics", token="wrong")[0] == 401
    with pytest.raises(grpc.RpcError, match="authorization: Bearer TOKEN"):
        client.predict(predict_request(given))
    # What is wrong is refused by a line.
    wrong: list[tuple[str, Any, int, str]] = [
        ("clicks:predict", b"{", 400, "the body must be JSON"),
        ("clicks:predict", {"inputs": {"C1": [1]}}, 400, "lacks C2, C3, I1, I2"),
        (
            "clicks:predict",
            {"inputs": lists | {"C1": ["a"]}},
            400,
            "'C1' must hold whole numbers, or",
        ),
        ("clicks:predict", {"inputs": lists | {"C1": [2**64]}}, 400, "'C1' must hold "),
        ("clicks:predict", {"instances": [{"C1": 1}]}, 400, "lacks C2"),
        ("clicks:predict", {"inputs": lists, "signature_name": "x"}, 400, "the signature must be"),
        ("none:predict", {"inputs": lists}, 404, "no model is named 'none'"),
        (f"clicks/versions/{number + 1}:predict", {"inputs": lists}, 404, "is served as version"),
        ("clicks:regress", {}, 404, "a path must be"),
    ]
    for path, asked, code, said in wrong:
        found_code, found = ask_rest(f"{rest}/v1/models/{path}", asked, "secret")
        assert found_code == code, (path, found)
        assert said in found
    client.close()
    process.send_signal(signal.SIGTERM)
    finish(process)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(address.split(":")[1])), timeout=5)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_tls_and_the_guides_client(tmp_path: Path, history: Path) -> None:
    key, chain = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", key, "-out", chain, "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    process = start(
        "embedps.serve",
        *("--model-dir", str(history), "--name", "clicks", "--port", "0", "--rest-port", "0"),
        *("--tls-cert", str(chain), "--tls-key", str(key)),
    )
    address, rest = ports(read_until(process, "serves ").splitlines()[-1])
    assert rest.startswith("https://")
    curl = ["curl", "-sS", "--cacert", str(chain), f"{rest}/healthz"]
    assert "SERVING" in subprocess.run(curl, check=True, capture_output=True, text=True).stdout
    page = blocks(ROOT / "docs" / "guides" / "serving.md")
    (client,) = (block.code for block in page if block.language == "py" and "grpc" in block.code)
    client = client.replace(
        'grpc.insecure_channel("localhost:8500")',
        f'grpc.secure_channel("{address}", grpc.ssl_channel_credentials('
        f'open("{chain}", "rb").read()))',
    )
    for of_the_page, of_the_model in (  # the columns of the quickstart's data, and of this model
        ('{"user": [7], "item": [1, 2, 3]}', '{"C1": [7], "C2": [8], "C3": [1, 2, 3]}'),
        ('{"price": [0.5]}', '{"I1": [0.5], "I2": [np.nan]}'),
    ):
        assert of_the_page in client
        client = client.replace(of_the_page, of_the_model)
    run("-c", client)
    process.send_signal(signal.SIGTERM)
    finish(process)


def complaint(capsys: Any, *flags: object) -> str:
    code = command_line.run(serve.main, [str(flag) for flag in flags])
    assert code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return str(said)


def test_mistakes_get_one_line(tmp_path: Path, history: Path, capsys: Any) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(f'model_dir = ["{history}"]\nname = ["a"]\n[ranking]\ntop_k = 9\n')
    said = complaint(capsys, "--config", file, "--max-top-k", 8)
    assert said == "embedps: --top-k must be at most --max-top-k, 8, but is 9\n"
    flags = ("--model-dir", history, "--name", "a")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = complaint(capsys, *flags, "--port", port, "--rest-port", 0)
        assert f"127.0.0.1:{port} must be an address of this machine with a free port" in said
        said = complaint(capsys, *flags, "--port", 0, "--rest-port", port)
        assert "give another --rest-port" in said
    assert "must have a --name but there are 1 and 2" in complaint(capsys, *flags, "--name", "b")
    assert "--name a is given twice" in complaint(capsys, *flags, *flags)
    assert "--ref p is given twice" in complaint(capsys, *flags, "--ref", "p", "p")
    assert "a ref's name must have" in complaint(capsys, *flags, "--ref", "../p")
    assert "give one of them" in complaint(capsys, *flags, "--ref", "p", "--number", "3")
    assert "needs --shadow REF" in complaint(capsys, *flags, "--shadow-log", tmp_path / "l")
    told = (*flags, "--shadow", "p")
    assert "another ref than" in complaint(capsys, *told, "--ref", "p")
    assert "has no ref 'p': there are none" in complaint(capsys, *told)
    assert "in a directory that is" in complaint(capsys, *told, "--shadow-log", "/none/l")
    assert "at most 1" in complaint(capsys, *told, "--shadow-share", "2")
    assert "letters, digits" in complaint(capsys, "--model-dir", history, "--name", "a/b")
    assert "given together" in complaint(capsys, *flags, "--tls-cert", history / "config.json")
    (tmp_path / "config.json").write_bytes((history / "config.json").read_bytes())
    said = complaint(capsys, "--model-dir", tmp_path, "--name", "a")
    assert "has no checkpoint yet: train first" in said

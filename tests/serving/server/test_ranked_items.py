"""The server's best items are those of an exact search with the manifest that the answer names."""

from __future__ import annotations

import functools
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.rows import RowFile
from embedps.checkpoint.tools.evict import Selection, evict
from embedps.data.corpus import Corpus
from embedps.data.dataset import Dataset
from embedps.evaluation.item_file import read_items
from embedps.models import two_tower
from embedps.run.run_config import read_run
from embedps.serving.export_model import export_model
from embedps.serving.server import item_search, ivf_index, messages
from embedps.serving.server.item_index import ItemIndex
from embedps.serving.server.item_search import ItemSearch
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.ranking import Ranking
from embedps.serving.server.requests import Request
from embedps.serving.server.top_k_format import TopKRequest
from tests.builders import Replay, latest, make_config, read_split
from tests.models import planted_interactions
from tests.processors import check_stock
from tests.serving.builders import examples, tensors
from tests.serving.server.builders import (
    Addresses,
    Client,
    ask_rest,
    predict_request,
    serving,
    until,
)

QUERIES, LEAST = 40, np.finfo(np.float32).min
TOWERS = {
    "rows": two_tower.Config(embedding_dim=8, history="history"),
    "mlp": two_tower.Config(embedding_dim=8, tower_mlp=(16,), history="history"),
    "columns": two_tower.Config(embedding_dim=8, item=("item", "user"), history="history"),
}
ON_ROWS = pytest.mark.parametrize("trained", ["rows"], indirect=True)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return planted_interactions.write_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, dataset: Dataset
) -> Path:
    """A run that trains, loses half of its items by an eviction, and trains again."""
    path = tmp_path_factory.mktemp("run") / "m"
    for epochs in (1, 2):
        config = make_config(
            dataset, path, model="two_tower", keep_secs=1e6, rebase="one-shot", epochs=epochs
        )
        embedps.Trainer.from_config(config, TOWERS[request.param]).fit()
        directory = CheckpointDirectory(path)
        norms = [
            np.linalg.norm(row) for row in rows_of(directory, directory.numbers()[-1]).values()
        ]
        evict(directory, "item", Selection(below_norm=float(np.median(norms))))
    return path


def records_of(directory: CheckpointDirectory, number: int) -> dict[int, dict[str, Any]]:
    """The records of the items' table at a manifest, by replaying its chain."""
    records: dict[int, dict[str, Any]] = {}
    for save in directory.read(number).chain:
        for entry in save.files:
            for batch in RowFile(directory.file(entry)).batches():
                for record in batch.to_pylist():
                    if record["table"] == "item":
                        records[record["id"]] = record
                        if record["removed"]:
                            del records[record["id"]]
    return records


def rows_of(directory: CheckpointDirectory, number: int) -> dict[int, np.ndarray]:
    found = records_of(directory, number).items()
    return {item: np.array(record["embedding"], np.float32) for item, record in found}


def products(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Sums products in order of the dimensions, by multiply-adds that round once."""
    sums = np.zeros([len(queries), len(vectors)], np.float32)
    for i in range(queries.shape[1]):
        product = queries[:, i, None].astype(np.longdouble) * vectors[:, i]
        sums = (product + sums).astype(np.float32)
    return sums


class Exact:
    """Ranks the items of a manifest by plain sums and sorting."""

    def __init__(self, model_dir: Path, number: int, dataset: Dataset) -> None:
        table = read_split(dataset).slice(0, QUERIES)
        model = embedps.load(model_dir, number=number)
        model.export_items(model_dir / "items.parquet")
        ids, vectors = read_items(model_dir / "items.parquet")
        has_row = np.isin(ids, [*rows_of(CheckpointDirectory(model_dir), number)])
        self.all_ids, self.ids = ids, ids[has_row]
        self.all_scores = products(model.predict(table)["query"], np.asarray(vectors))
        self.scores = self.all_scores[:, has_row]

    def best(self, row: int, k: int, seen: Any = (), allowed: Any = None) -> tuple[Any, Any]:
        scores = np.where(np.isin(self.ids, seen), -np.inf, self.scores[row])
        if allowed is not None:
            scores = np.where(np.isin(self.ids, allowed), scores, -np.inf)
        order = np.argsort(-scores, kind="stable")[:k]
        order = order[scores[order] > -np.inf]
        missing = k - len(order)
        return (
            np.concatenate([self.ids[order], np.full(missing, -1)]),
            np.concatenate([scores[order], np.full(missing, LEAST, np.float32)]),
        )


ExactOf = Callable[[int], Exact]


@pytest.fixture(scope="module")
def exact_of(trained: Path, dataset: Dataset) -> ExactOf:
    """Gives the exact search of a manifest."""
    return functools.cache(lambda number: Exact(trained, number, dataset))


@pytest.fixture(scope="module")
def served(trained: Path, dataset: Dataset) -> Iterator[tuple[ModelApi, Addresses]]:
    """The newest manifest, served without options."""
    with serving(CheckpointDirectory(trained), dataset) as (api, _, addresses):
        yield api, addresses


def ask(client: Client, given: dict[str, np.ndarray], **spec: Any) -> tuple[int, Any, Any]:
    request = predict_request(given, **spec)
    request.model_spec.signature_name = "top_k"
    response = client.predict(request)
    assert response.model_spec.signature_name == "top_k"
    found = (tf.make_ndarray(response.outputs[name]) for name in ("ids", "scores"))
    return (response.model_spec.version.value, *found)


def queries_of(dataset: Dataset) -> dict[str, np.ndarray]:
    return tensors(read_split(dataset).slice(0, QUERIES), ["user", "history"])


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def check(found: tuple[Any, Any], exact: Exact, rows: Any, k: int, **filters: Any) -> None:
    for row, ids, scores in zip(rows, *found, strict=True):
        each = {name: lists[row] for name, lists in filters.items()}
        want_ids, want_scores = exact.best(row, k, **each)
        np.testing.assert_array_equal(ids, want_ids)
        np.testing.assert_array_equal(scores, want_scores)


def check_each_k(found: tuple[Any, Any], exact: Exact) -> None:
    """Checks an answer whose first row asked for one item, the second for two, and so on."""
    ids, scores = found
    assert ids.shape == scores.shape == (QUERIES, QUERIES)
    for row in range(QUERIES):
        own = (ids[row : row + 1, : row + 1], scores[row : row + 1, : row + 1])
        check(own, exact, [row], row + 1)
        assert (ids[row, row + 1 :] == -1).all()
        assert (scores[row, row + 1 :] == LEAST).all()


@pytest.mark.slow
@pytest.mark.parametrize("trained", [*TOWERS], indirect=True)
def test_each_answer_is_the_exact_search_of_its_manifest(
    trained: Path, dataset: Dataset, exact_of: ExactOf, tmp_path: Path
) -> None:
    replay = Replay(trained, tmp_path / "m")
    given, ended = queries_of(dataset), threading.Event()
    exact = {number: exact_of(number) for number in replay.numbers}
    answers: list[tuple[int, Any, Any]] = []
    replay.commit(replay.numbers[0])

    def ask_on(address: str) -> None:
        client = Client(address)
        while not ended.is_set():
            answers.append(ask(client, given | {"k": ints(7)}))
        client.close()

    with serving(replay.directory, dataset) as (api, model, addresses):
        client = addresses.client
        thread = threading.Thread(target=ask_on, args=(addresses.grpc,))
        thread.start()
        until(lambda: answers)
        for number in replay.numbers:
            replay.commit(number)
            until(lambda n=number: model.standing.number == n)
            assert model.standing.items == len(exact[number].ids)
            version, ids, scores = ask(client, given | {"k": ints(7)})
            assert version == number
            one = {"user": given["user"][:1], "history": given["history"][:10]}
            alone = ask(client, one | {"history_lengths": ints(10)})
            assert alone[1].shape == (1, 100)
            np.testing.assert_array_equal(alone[1][0, :7], ids[0])
            np.testing.assert_array_equal(alone[2][0, :7], scores[0])
        until(lambda: answers[-1][0] == replay.numbers[-1])
        ended.set()
        thread.join()
        assert model.refusal is None
        assert (
            f'embedps_items{{model="clicks",ref=""}} {model.standing.items}' in api.metrics.text()
        )
    assert {version for version, *_ in answers} >= {replay.numbers[0], replay.numbers[-1]}
    for version, ids, scores in answers:
        check((ids, scores), exact[version], range(QUERIES), 7)
    # Items were removed, and others came back.
    assert len({len(each.ids) for each in exact.values()}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("trained", ["mlp"], indirect=True)
def test_all_items_of_the_dataset_are_ranked_as_an_export_does(
    trained: Path, dataset: Dataset, tmp_path: Path
) -> None:
    directory = CheckpointDirectory(trained)
    number = directory.numbers()[-1]
    recommender = read_run(trained).recommender(dataset)
    done = export_model(recommender, dataset, directory, tmp_path / "out", number, top_k=9)
    asked = read_split(dataset).slice(0, QUERIES)
    query = queries_of(dataset)
    given = query | tensors(asked, ["seen"])
    exported = tf.saved_model.load(str(done.path)).signatures
    want = exported["top_k"](**{name: tf.constant(array) for name, array in given.items()})
    ranking = Ranking(items="dataset", top_k=9)
    with serving(directory, dataset, ranking=ranking) as (api, model, addresses):
        client = addresses.client
        version, ids, scores = ask(client, given)
        assert version == number
        assert model.standing.items == len(Corpus.of(dataset, "item").ids)
        np.testing.assert_array_equal(ids, want["ids"])
        check_stock(scores, want["scores"])
        # The other signatures are those of the export, too.
        _, told = api.metadata("clicks")
        assert set(told.signature_def) == set(exported)
        assert {n: s.dtype for n, s in told.signature_def["query"].outputs.items()} == {"query": 1}
        vectors = exported["query"](**{n: tf.constant(array) for n, array in query.items()})
        response = client.predict(predict_request(query, signature="query"))
        assert response.model_spec.version.value == number
        found = tf.make_ndarray(response.outputs["query"])
        check_stock(found, vectors["query"].numpy())
        for columns in (["user", "history", "seen"], ["user", "history"]):
            records = examples(asked, columns)
            want = exported["top_k_examples"](examples=tf.constant(records["examples"]))
            response = client.predict(predict_request(records, signature="top_k_examples"))
            found_ids, found_scores = (
                tf.make_ndarray(response.outputs[name]) for name in ("ids", "scores")
            )
            np.testing.assert_array_equal(found_ids, want["ids"])
            check_stock(found_scores, want["scores"])


@ON_ROWS
def test_filters_leave_out(
    trained: Path, dataset: Dataset, exact_of: ExactOf, served: tuple[ModelApi, Addresses]
) -> None:
    exact = exact_of(latest(trained).number)
    given, left = queries_of(dataset), len(exact.ids)
    seen = read_split(dataset)["seen"].slice(0, QUERIES).to_pylist()
    every = exact.all_ids.tolist()
    best = exact.best(0, 3)[0].tolist()

    def of_all(name: str, *ids: int) -> dict[str, np.ndarray]:
        return {name: ints(*ids), f"{name}_lengths": ints(len(ids))}

    client = served[1].client

    def compare(k: int, more: dict[str, np.ndarray], **filters: Any) -> Any:
        found = ask(client, given | {"k": ints(k)} | more)[1:]
        check(found, exact, range(QUERIES), k, **filters)
        return found

    rows = range(QUERIES)
    of_rows = tensors(read_split(dataset).slice(0, QUERIES), ["seen"])
    compare(20, of_rows, seen=seen)
    compare(left + 30, {})
    ids, scores = compare(5, of_all("seen", *every), seen=[every for _ in rows])
    assert (ids == -1).all()
    assert (scores == LEAST).all()
    odd = [best[0], best[0], 10**12, -5]
    compare(5, of_all("seen", *odd), seen=[odd for _ in rows])
    some = [*best, best[1], 10**12, -1]
    compare(5, of_all("allowed", *some), allowed=[some for _ in rows])
    compare(5, of_all("allowed"), allowed=[[] for _ in rows])
    compare(5, of_rows | of_all("allowed", *every), seen=seen, allowed=[every for _ in rows])
    check_each_k(ask(client, given | {"k": np.arange(1, QUERIES + 1)})[1:], exact)
    for wrong, said in (
        ({"k": ints(0)}, "'k' must be from 1 to 1000"),
        ({"k": ints(1001)}, "'k' must be from 1 to 1000"),
        ({"seen": ints(3)}, "'seen' and 'seen_lengths' must be there together"),
        ({"other": ints(3)}, "has other besides"),
        ({"embedps_is_limited": ints(1)}, "has embedps_is_limited besides"),
        ({"k": ints(1, 2)}, "one row or all"),
        (of_all("allowed", 1) | {"allowed_lengths": ints(2)}, "add up to its 1 values"),
    ):
        with pytest.raises(grpc.RpcError, match=said) as refused:
            ask(client, given | wrong)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@ON_ROWS
def test_a_large_request_is_ranked_in_parts(
    trained: Path, dataset: Dataset, exact_of: ExactOf
) -> None:
    """The answer is as wide as if it were one batch, though the parts' largest `k` differ."""
    directory = CheckpointDirectory(trained)
    exact = exact_of(directory.numbers()[-1])
    given = queries_of(dataset) | {"k": np.arange(1, QUERIES + 1)}
    with serving(directory, dataset, part_rows=16) as (api, _, addresses):
        client = addresses.client
        check_each_k(ask(client, given)[1:], exact)
        assert 'embedps_batch_rows_count{model="clicks",ref=""} 3.0' in api.metrics.text()


@ON_ROWS
def test_rest_gives_items_by_row_and_by_column(
    trained: Path, dataset: Dataset, exact_of: ExactOf, served: tuple[ModelApi, Addresses]
) -> None:
    api, addresses = served
    exact = exact_of(latest(trained).number)
    records = read_split(dataset).slice(0, 2).select(["user", "history"]).to_pylist()

    def post(body: Any) -> Any:
        data = json.dumps({"signature_name": "top_k", **body}).encode()
        url = f"{addresses.rest}/v1/models/clicks:predict"
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as response:
            return json.loads(response.read())

    best = exact.best(0, 2)[0].tolist()
    rows = [{**records[0], "k": 3, "seen": best}, {**records[1], "k": 3, "seen": []}]
    found = post({"instances": rows})["predictions"]
    for row, seen in enumerate((best, ())):
        ids, scores = exact.best(row, 3, seen=seen)
        assert found[row]["ids"] == ids.tolist()
        np.testing.assert_allclose(found[row]["scores"], scores, rtol=1e-6)
    columns = {
        "user": [records[0]["user"]],
        "history": records[0]["history"],
        "history_lengths": [len(records[0]["history"])],
        "allowed": best,
        "allowed_lengths": [2],
        "k": [2],
    }
    assert post({"inputs": columns})["outputs"]["ids"] == [best]
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post({"inputs": columns, "signature_name": "query"})
    number, signatures = api.metadata("clicks")
    assert number == latest(trained).number
    ranked = signatures.signature_def["top_k"]
    assert {"user", "history", "k", "seen", "allowed"} < set(ranked.inputs)
    assert set(ranked.outputs) == {"ids", "scores", "unknown"}
    assert isinstance(signatures, messages.SignatureDefMap)


@pytest.mark.slow
@ON_ROWS
def test_an_ivf_finds_what_changed_since_it_was_built(
    trained: Path,
    dataset: Dataset,
    exact_of: ExactOf,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("faiss", reason="needs faiss: pip install 'embedps[ivf]'")
    monkeypatch.setattr(item_search, "_MAX_SIDE", 2.0)  # it is not built anew
    replay = Replay(trained, tmp_path / "m")
    given, k = queries_of(dataset), 7
    ranking = Ranking(ivf_above=50, ivf_recall=1.0, top_k=k)
    first, *others = replay.numbers
    replay.commit(first)
    with serving(replay.directory, dataset, ranking=ranking) as (api, model, addresses):
        client = addresses.client
        said = capsys.readouterr().out
        assert re.search(r"IVF of \d+ items: 1\d lists, \d+ probes, recall 1.0000 of", said)
        assert 'embedps_item_recall{model="clicks",ref=""} 1' in api.metrics.text()
        items = model.model.items
        assert items is not None
        assert items._search._state.ivf is not None
        # The queries are of the sample for which the recall is 1.
        exact = exact_of(first)
        check(ask(client, given)[1:], exact, range(QUERIES), k)
        seen = tensors(read_split(dataset).slice(0, QUERIES), ["seen"])
        found = ask(client, given | seen | {"k": ints(50)})[1:]
        want = read_split(dataset)["seen"].slice(0, QUERIES).to_pylist()
        assert [
            len(np.intersect1d(ids, each)) for ids, each in zip(found[0], want, strict=True)
        ] == [0] * QUERIES
        check(
            ask(client, given | {"allowed": ints(*exact.ids[:9]), "allowed_lengths": ints(9)})[1:],
            exact,
            range(QUERIES),
            k,
            allowed=[exact.ids[:9]] * QUERIES,
        )
        # Asked for more than the lists have, it compares all.
        check(ask(client, given | {"k": ints(150)})[1:], exact, range(QUERIES), 150)
        before = rows_of(CheckpointDirectory(trained), first)
        for number in others:
            replay.commit(number)
            until(lambda n=number: model.standing.number == n)
            rows = rows_of(CheckpointDirectory(trained), number)
            new = [
                id
                for id, row in rows.items()
                if id not in before or not np.array_equal(row, before[id])
            ]
            exact = exact_of(number)
            version, ids, scores = ask(client, given)
            assert version == number
            for row in range(QUERIES):
                best, _ = exact.best(row, k)
                assert set(best) & set(new) <= set(ids[row])
                of_ids = np.searchsorted(exact.ids, ids[row])
                np.testing.assert_array_equal(exact.ids[of_ids], ids[row])
                np.testing.assert_array_equal(exact.scores[row, of_ids], scores[row])


def test_an_ivf_is_built_anew_beside_searches_once_much_has_changed() -> None:
    pytest.importorskip("faiss", reason="needs faiss: pip install 'embedps[ivf]'")
    rng, none = np.random.default_rng(3), ints()
    vectors, keys = rng.normal(size=(2000, 8)).astype(np.float32), np.arange(2000)
    queries = rng.normal(size=(64, 8)).astype(np.float32)
    index = ItemIndex(8).changed(keys, vectors, none)
    ranking = Ranking(ivf_above=100, ivf_recall=0.9, top_k=10)
    search = ItemSearch(ranking, keys, index, lambda: queries)
    assert 0.9 <= search.recall < 1
    before = search._state.ivf
    assert before is not None
    assert 1 <= before.num_probes < before.num_lists == 44
    for moved in (np.arange(100), np.arange(50, 300)):  # 5%, then 15% in all
        index = index.changed(moved, rng.normal(size=(len(moved), 8)), none)
        search.take(search.changed(keys, index, moved, none))
        search.refresh()
    more = ints(7)  # changed while it is built
    index = index.changed(more, 9 * queries[:1], none)
    search.take(search.changed(keys, index, more, none))
    until(lambda: search._thread is not None and not search._thread.is_alive())
    search.refresh()
    after = search._state
    assert after.ivf is not before
    assert search.recall >= 0.9
    assert after.side is not None
    assert after.side.num_items == 1
    zeros = (none, np.zeros(64, np.int64))
    columns = np.zeros([0, 64])
    request = TopKRequest(
        query=Request(rows=64, floats=columns, integers=columns, lists=()),
        k=np.full(64, 10),
        most=10,
        seen=zeros,
        allowed=zeros,
        is_limited=np.zeros(64, np.bool_),
    )
    scores, found = search.find(tf.constant(queries), request, 10)
    best, places = tf.math.top_k(tf.matmul(queries, index.read(keys), transpose_b=True), 10)
    assert found[0, 0] == 7
    np.testing.assert_array_equal(scores[0, 0], best[0, 0])
    shares = [np.isin(*pair).mean() for pair in zip(places.numpy(), found, strict=True)]
    assert np.mean(shares) >= 0.9
    search.close()


def test_without_faiss_all_items_are_compared_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ivf_index, "is_installed", lambda: False)
    index = ItemIndex(2).changed(ints(4, 5), np.ones([2, 2], np.float32), ints())
    ItemSearch(Ranking(ivf_above=1), ints(4, 5), index, lambda: np.ones([3, 2], np.float32))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("2 items are more than --ivf-above 1, but faiss is not installed")
    assert "pip install 'embedps[ivf]'" in line


def most_updated(directory: CheckpointDirectory, number: int) -> list[int]:
    """The items by the updates that the files count; of equal ones the smaller id first."""
    found = records_of(directory, number).items()
    updates = {item: record["frequency"] for item, record in found}
    return sorted(updates, key=lambda item: (-updates[item], item))


def exported_top_k(model_dir: Path, dataset: Dataset, output: Path, choice: Any) -> Any:
    """The signature top_k of an export that gives 3 items, as a function of records."""
    directory = CheckpointDirectory(model_dir)
    done = export_model(
        read_run(model_dir).recommender(dataset),
        dataset,
        directory,
        output,
        directory.numbers()[-1],
        top_k=3,
        unknown_query=choice,
    )
    loaded = tf.saved_model.load(str(done.path))

    def top_k(*records: dict[str, Any]) -> dict[str, np.ndarray]:
        users = [-1 if record["user"] is None else record["user"] for record in records]
        given = {"user": ints(*users)}
        for name in ("history", "seen"):
            given[name] = ints(*(id for record in records for id in record[name]))
            given[f"{name}_lengths"] = ints(*(len(record[name]) for record in records))
        made = {name: tf.constant(array) for name, array in given.items()}
        return {n: each.numpy() for n, each in loaded.signatures["top_k"](**made).items()}

    return top_k


@ON_ROWS
@pytest.mark.parametrize(
    "choice",
    ["popular", *(pytest.param(each, marks=pytest.mark.slow) for each in ("score", "error"))],
)
def test_an_unknown_query_is_told_and_gets_what_the_server_chose(
    trained: Path, dataset: Dataset, exact_of: ExactOf, tmp_path: Path, choice: Any
) -> None:
    directory = CheckpointDirectory(trained)
    number = directory.numbers()[-1]
    popular = most_updated(directory, number)
    stranger = {"user": 10**15, "history": [], "k": 3, "seen": popular[1:2]}
    missing = stranger | {"user": None}
    (known,) = read_split(dataset).slice(0, 1).select(["user", "history"]).to_pylist()
    known |= {"k": 3, "seen": []}
    with serving(directory, dataset, ranking=Ranking(unknown_query=choice)) as (_, _, addresses):

        def post(*rows: Any) -> tuple[int, Any]:
            url = f"{addresses.rest}/v1/models/clicks:predict"
            return ask_rest(url, {"signature_name": "top_k", "instances": [*rows]})

        code, of_known = post(known)
        assert (code, of_known["predictions"][0]["unknown"]) == (200, False)
        exact = exact_of(number)
        assert of_known["predictions"][0]["ids"] == exact.best(0, 3)[0].tolist()
        code, found = post(known, stranger, missing)
        exported = exported_top_k(trained, dataset, tmp_path / "out", choice)
        if choice == "error":
            assert code == 404
            assert found.startswith("record 1 is of an unknown query: none of its ids in user, his")
            with pytest.raises(
                tf.errors.InvalidArgumentError,
                match="a record is of an unknown query: none of its ids in user, history",
            ):
                exported(known, stranger, missing)
            assert exported(known)["unknown"].tolist() == [False]
            return
        assert code == 200
        rows = found["predictions"]
        assert [row["unknown"] for row in rows] == [False, True, True]
        assert rows[0] == of_known["predictions"][0]
        for row in rows[1:]:
            if choice == "popular":
                assert row["ids"] == [popular[0], *popular[2:4]]
                assert row["scores"] == sorted(row["scores"], reverse=True)
                assert row["scores"][0] > 0
            else:
                assert row["scores"] == [0.0, 0.0, 0.0]
        loaded = exported(known, stranger, missing)
        assert loaded["unknown"].tolist() == [False, True, True]
        np.testing.assert_allclose(loaded["scores"], [row["scores"] for row in rows], rtol=1e-6)
        of_choice = slice(0, 3 if choice == "popular" else 1)  # equal scores are in any order
        assert loaded["ids"].tolist()[of_choice] == [row["ids"] for row in rows][of_choice]
        if choice == "popular":
            code, found = post({**stranger, "allowed": sorted(popular[:3])})
            assert found["predictions"][0]["ids"] == [popular[0], popular[2], -1]

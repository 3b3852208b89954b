"""Each item is chosen once; a change is visible from the first answer that has it."""

from pathlib import Path

from benchmarks import retrieval_serving
from embedps.serving.server.messages import PredictRequest


def test_each_item_is_chosen_once_and_some_are_held_out(tmp_path: Path) -> None:
    retrieval_serving.write_interactions(tmp_path, 1000)
    users, items = [], []
    for line in (tmp_path / "train.txt").read_text().splitlines():
        user, *chosen = map(int, line.split())
        users.append(user)
        items += chosen
    assert users == list(range(50))
    assert sorted(items) == list(range(1000))
    held_out = (tmp_path / "test.txt").read_text().splitlines()
    assert [line.split()[0] for line in held_out] == [str(user) for user in range(8)]


def test_a_manifest_that_was_skipped_is_visible_with_the_next() -> None:
    seen = {1: 10.0, 3: 12.5, 4: 13.0}
    committed = {1: 9.5, 2: 11.0, 3: 12.0, 4: 12.75}
    wanted = {1: 0.5, 2: 1.5, 3: 0.5, 4: 0.25}
    assert retrieval_serving.visible_secs(seen, committed) == wanted


def test_requests_name_the_user_and_how_many_items() -> None:
    request = PredictRequest.FromString(retrieval_serving.make_request(7))
    assert request.model_spec.signature_name == "top_k"
    assert {name: list(t.int64_val) for name, t in request.inputs.items()} == {
        "user": [7],
        "k": [retrieval_serving.K],
    }

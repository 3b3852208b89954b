import gzip
from typing import Any

import pytest

from benchmarks import model_retrieval as models


@pytest.fixture
def samples(tmp_path):
    for part, lines in (("train", "0 1 2\n1 2 3\n"), ("valid", "0 3\n"), ("test", "1 1\n")):
        with gzip.open(tmp_path / f"lightgcn_lastfm_{part}.txt.gz", "wt") as file:
            file.write(lines)
    return tmp_path


def test_retrieval_goes_on_where_it_was_interrupted(samples, tmp_path, monkeypatch):
    pairs_of: list[Any] = []
    seeds: list[int] = []

    def baseline(pairs, folder):
        pairs_of.append({part: found.tolist() for part, found in pairs.items()})
        return {name: {"recall@20": [0.1], "ndcg@20": [0.2]} for name in ("ALS", "BPR")}

    def train(data, model_dir, seed, flags):
        seeds.append(seed)
        return {"recall@20": seed + 0.5, "ndcg@20": seed + 0.25}

    def linear(pairs):
        return {name: {"recall@20": [0.3], "ndcg@20": [0.4]} for name in ("item-kNN", "EASE")}

    monkeypatch.setattr(models, "baseline", baseline)
    monkeypatch.setattr(models, "score_linear", linear)
    monkeypatch.setattr(models, "train_two_tower", train)

    def go_on(found, parts):
        folder = tmp_path / f"run-{len(pairs_of)}-{len(seeds)}"
        folder.mkdir()
        begun: list[None] = []
        for part in models.retrieval("lastfm", samples, folder, found, lambda: len(begun) >= parts):
            begun.append(part)

    found: dict[str, Any] = {}
    go_on(found, 3)
    assert found["EASE"]["recall@20"] == [0.3]
    assert pairs_of == [
        {"train": [[0, 1], [0, 2], [1, 2], [1, 3]], "valid": [[0, 3]], "test": [[1, 1]]}
    ]
    assert found["two_tower"]["recall@20"] == [0.5]
    go_on(found, 9)
    assert (len(pairs_of), seeds) == (1, list(models.SEEDS))
    assert found["two_tower"]["ndcg@20"] == [seed + 0.25 for seed in models.SEEDS]
    found["two_tower"]["settings"] = ["--others"]
    go_on(found, 1)
    assert seeds[len(models.SEEDS) :] == [models.SEEDS[0]]

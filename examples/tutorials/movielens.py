"""Makes the tutorials' datasets: ratings with what is known of users, and users' histories.

usage: python -m examples.tutorials.movielens DIRECTORY [--samples DIR] [--users N]
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RATINGS = """
format = "parquet"

[[column]]
name = "user_rating"
as = "label"
task = "number"

[[column]]
names = ["user_id", "movie_id", "movie_title", "user_zip_code", "user_occupation_text"]
as = "categorical"
type = "string"

[[column]]
names = ["user_gender", "bucketized_user_age"]
as = "categorical"
type = "integer"

[[column]]
name = "timestamp"
as = "timestamp"
"""

HISTORIES = """
format = "parquet"

[[column]]
name = "watched"
as = "label"

[[column]]
names = ["history", "next_items", "other_items"]
as = "list"
type = "string"
"""

AGES = (1, 18, 25, 35, 45, 50, 56)


def read_movielens(samples: Path) -> dict[str, list[Any]]:
    """Reads MovieLens 100K: columns of ratings, joined with users and movies."""
    titles = [line.split("\t") for line in (samples / "movielens_100k_item.txt").open()][1:]
    title_of = {fields[0]: f"{fields[1]} ({fields[2]})" for fields in titles}
    users = [line.strip().split("\t") for line in (samples / "movielens_100k_user.txt").open()][1:]
    user_of = {fields[0]: fields for fields in users}
    with gzip.open(samples / "movielens_100k_u.data.gz", "rt") as file:
        ratings = [line.split("\t") for line in file]
    return {
        "user_id": [fields[0] for fields in ratings],
        "movie_id": [fields[1] for fields in ratings],
        "movie_title": [title_of[fields[1]] for fields in ratings],
        "user_rating": [float(fields[2]) for fields in ratings],
        "timestamp": [int(fields[3]) for fields in ratings],
        "user_gender": [int(user_of[fields[0]][2] == "M") for fields in ratings],
        "user_occupation_text": [user_of[fields[0]][3] for fields in ratings],
        "user_zip_code": [user_of[fields[0]][4] for fields in ratings],
        "bucketized_user_age": [
            max(age for age in AGES if age <= int(user_of[fields[0]][1])) for fields in ratings
        ],
    }


def generate(num_users: int) -> dict[str, list[Any]]:
    """Generates ratings of that shape: a user likes movies of the own taste."""
    rng = np.random.default_rng(1)
    num_movies = 2 * num_users
    num_ratings = 100 * num_users
    taste, kind = rng.normal(0, 1, (num_users, 4)), rng.normal(0, 1, (num_movies, 4))
    user = rng.integers(0, num_users, num_ratings)
    # Of a few movies each user sees the one that fits best.
    offered = np.minimum(rng.zipf(1.3, (num_ratings, 4)) - 1, num_movies - 1)
    fits = np.einsum("rd,rod->ro", taste[user], kind[offered])
    movie = offered[np.arange(num_ratings), fits.argmax(axis=1)]
    rating = np.clip(np.round(3.5 + fits.max(axis=1) / 2 + rng.normal(0, 0.5, num_ratings)), 1, 5)
    return {
        "user_id": [str(u) for u in user],
        "movie_id": [str(m) for m in movie],
        "movie_title": [f"Movie {m} ({1930 + m % 68})" for m in movie],
        "user_rating": rating.tolist(),
        "timestamp": (874_724_710 + np.sort(rng.integers(0, 18_000_000, num_ratings))).tolist(),
        "user_gender": (user % 2).tolist(),
        "user_occupation_text": [f"occupation {u % 21}" for u in user],
        "user_zip_code": [f"{10_000 + 7 * u % 800}" for u in user],
        "bucketized_user_age": [AGES[u % len(AGES)] for u in user],
    }


def histories(ratings: dict[str, list[Any]], length: int = 50) -> dict[str, list[Any]]:
    """Makes each user's movies in the order of time, the next ones, and others at random."""
    rng = np.random.default_rng(2)
    order = np.argsort(ratings["timestamp"], kind="stable")
    of_user: dict[str, list[str]] = {}
    for i in order:
        of_user.setdefault(ratings["user_id"][i], []).append(ratings["movie_id"][i])
    movies = sorted(set(ratings["movie_id"]))
    columns: dict[str, list[Any]] = {
        "watched": [], "history": [], "next_items": [], "other_items": []
    }  # fmt: skip
    for seen in of_user.values():
        for start in range(0, len(seen) - 1, length):
            part = seen[start : start + length + 1]
            if len(part) < 2:
                continue
            columns["watched"].append(1.0)
            columns["history"].append(part[:-1])
            columns["next_items"].append(part[1:])
            columns["other_items"].append(rng.choice(movies, len(part) - 1).tolist())
    return columns


def ingest(directory: Path, name: str, columns: dict[str, list[Any]], schema: str) -> None:
    """Writes columns as a log, and makes a dataset of it."""
    log = directory / f"{name}.parquet"
    pq.write_table(pa.table(columns), log)
    (directory / f"{name}.toml").write_text(schema)
    command = [
        sys.executable,
        "-m",
        "embedps.pipelines.ingest",
        "--num-shards",
        "2",
        "--input",
        str(log),
    ]
    command += ["--schema", str(directory / f"{name}.toml"), "--output", str(directory / name)]
    subprocess.run(command, check=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--samples", type=Path, help="a directory with MovieLens 100K")
    parser.add_argument("--users", type=int, default=943, help="of generated ratings")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    ratings = read_movielens(options.samples) if options.samples else generate(options.users)
    ingest(options.directory, "ratings", ratings, RATINGS)
    ingest(options.directory, "histories", histories(ratings), HISTORIES)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The movies of a dataset: the candidates of the retrieval tutorials."""

import embedps
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf


def movies_of(dataset: embedps.Dataset) -> tf.data.Dataset:
    """Lists the ids of a dataset's movies, as elements {"movie_title": id}."""
    paths = [path for split in dataset.splits for path in dataset.paths(split)]
    tables = [pq.read_table(path, columns=["movie_title"]) for path in paths]
    titles = pa.concat_tables(tables)["movie_title"].unique().sort()
    return tf.data.Dataset.from_tensor_slices({"movie_title": titles.to_numpy()})

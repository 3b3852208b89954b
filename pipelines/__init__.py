"""Pipelines: click logs, real or generated, to datasets of Parquet shards."""

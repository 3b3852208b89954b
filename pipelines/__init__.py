"""Pipelines turn click logs, real or generated, into datasets of Parquet shards.

The modules here are the commands (`ingest`, `criteo`, `generate`, `describe`, `interactions`) and
what several rooms share (`moments`, `criteo_format`). The rooms `ingestion`, `synthetic` and
`report` are below the commands and do not import each other.
"""

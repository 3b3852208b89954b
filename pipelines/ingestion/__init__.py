"""Ingestion: parses input files, fits the transforms and writes a dataset, as a Beam job."""

"""Holds the on-disk formats: manifests, row files and dense files as bytes."""

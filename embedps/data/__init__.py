"""Holds the dataset format and its reader."""

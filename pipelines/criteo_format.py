"""Criteo's click-log line: label, 13 integers, 26 hex ids; tabs between, empty is missing."""

NUM_INTEGERS = 13
NUM_IDS = 26

LABEL = "label"
INTEGERS = tuple(f"I{i}" for i in range(1, NUM_INTEGERS + 1))
IDS = tuple(f"C{i}" for i in range(1, NUM_IDS + 1))
FIELDS = (LABEL, *INTEGERS, *IDS)

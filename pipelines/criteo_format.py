"""The line format of Criteo's click logs: a label, 13 integers and 26 hexadecimal ids.

Tabs separate the fields; an empty field is a missing value.
"""

NUM_INTEGERS = 13
NUM_IDS = 26

LABEL = "label"
INTEGERS = tuple(f"I{i}" for i in range(1, NUM_INTEGERS + 1))
IDS = tuple(f"C{i}" for i in range(1, NUM_IDS + 1))
FIELDS = (LABEL, *INTEGERS, *IDS)

"""Names of what retrieval models look up besides a dataset's columns."""

NEGATIVES = "_negatives"
"""The column of ids that are drawn from the catalog."""

RATE, NEGATIVES_RATE = "_item_rate", "_negatives_rate"
"""How often the rows of the items, and of those that are drawn, are updated."""

COUNTED, NEGATIVES_COUNTED = "_item_counted", "_negatives_counted"
"""The items and the drawn ids once more, for a table of their counts."""

"""The ways in which a training step is taken: one interface, one file per way."""

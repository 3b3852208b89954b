"""Holds the ledger of units, and the scheduler that keeps them running on a cluster."""

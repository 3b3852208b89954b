"""Synthetic click logs: draws rows and labels of a planted model, and writes them as TSV."""

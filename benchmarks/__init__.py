"""Benchmarks: each writes JSON, and compares within one run by ratios."""

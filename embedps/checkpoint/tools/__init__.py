"""Holds what `embedps checkpoint` does: inspect, verify, diff, compact, and replay."""

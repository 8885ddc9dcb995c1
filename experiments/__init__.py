"""Experiments: one file each, run by hand; their results are in docs/."""

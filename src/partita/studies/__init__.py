"""Experiments: one file each, run by hand; their results are in docs/."""

import os

# As on the command line: XLA's words about its own cache are long, and nothing is wrong.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

"""Digests of arrays, to tell one content from another."""

import hashlib
from collections.abc import Mapping

import numpy as np


def content_digest(arrays: Mapping[str, np.ndarray], text: str) -> str:
    """The digest of arrays and of a text about them."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()

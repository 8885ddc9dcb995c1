"""Gaussian processes: kernels, likelihoods, and sparse posteriors that follow a stream."""

from partita.gp import kernels, likelihoods
from partita.gp.sparse import Factor, SparseGP
from partita.gp.stream import Learning, Stream

__all__ = ["Factor", "Learning", "SparseGP", "Stream", "kernels", "likelihoods"]

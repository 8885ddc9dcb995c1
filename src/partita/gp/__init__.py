"""Gaussian processes: kernels, likelihoods, sparse posteriors in the loop, or following a stream."""

from partita.gaussian_processes import kernels, likelihoods
from partita.gp.learning import Learning
from partita.gp.sparse import Factor, SparseGP
from partita.gp.stream import Stream
from partita.models.sparse_process import SparseProcess

__all__ = ["Factor", "Learning", "SparseGP", "SparseProcess", "Stream", "kernels", "likelihoods"]

"""Gaussian processes: kernels, likelihoods, sparse posteriors in the loop, or following a stream."""

from partita.gp import kernels, likelihoods
from partita.gp.learning import Learning
from partita.gp.process import SparseProcess
from partita.gp.sparse import Factor, SparseGP
from partita.gp.stream import Stream

__all__ = ["Factor", "Learning", "SparseGP", "SparseProcess", "Stream", "kernels", "likelihoods"]

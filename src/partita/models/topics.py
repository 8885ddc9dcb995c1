"""Latent Dirichlet allocation: the topics of a document are found at its site."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from partita.errors import ShardError
from partita.families import Dirichlet, Family
from partita.families.gamma import positive_digamma
from partita.foundation.checks import check_count, check_positive, check_seed
from partita.foundation.runtime import Array, on_host, precision
from partita.foundation.shapes import PerRow
from partita.models.base import AbstractModel, Hyper, check_numbers
from partita.shards import Shard, make_shard, rounded

# Documents that are worked on together: few enough for the processor's cache.
AT_ONCE = 64
# Below this, a likelihood counts as this.
LEAST = 1e-30


class Documents(NamedTuple):
    """Which words a document has, and how often, padded with words that are there zero times."""

    words: Array  # [documents, length]
    counts: Array  # [documents, length]


class LatentDirichletAllocation(AbstractModel):
    """Words of a document are drawn from a mixture of topics of its own (Blei, Ng and Jordan, 2003).

    Topics are distributions over words with a Dirichlet prior, and are what is learnt: a posterior `Dirichlet` with one
    row per topic. A document's shares of topics have a posterior that never leaves its site; it is found by coordinate
    ascent in every evaluation. All topics have the same prior, so a run starts at topics that differ at random. A shard
    is a matrix of counts, documents by words, sparse or dense.

    Args:
        topics, words: how many.
        concentration: of the prior of a topic, per word.
        document_concentration: of the prior of a document's shares, per topic.
        iterations, tolerance: of a document's coordinate ascent, which ends where shares change by less.
        single_precision: half the memory, and about twice the speed.
        init_seed: of the topics to start from.
    """

    topics: int
    words: int
    concentration: float = 0.1
    document_concentration: float = 0.1
    iterations: int = 100
    tolerance: float = 1e-3
    single_precision: bool = False
    init_seed: int = 0

    takes_target: ClassVar[bool] = False
    suggested: ClassVar = {"topics": (10, "how many there are")}
    closed_form: ClassVar[bool] = True
    conjugate: ClassVar[bool] = True
    prior_on_host: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_count("LatentDirichletAllocation: ", topics=self.topics, words=self.words, iterations=self.iterations)
        check_seed("LatentDirichletAllocation: ", init_seed=self.init_seed)
        check_positive(
            "LatentDirichletAllocation: ",
            concentration=self.concentration,
            document_concentration=self.document_concentration,
            tolerance=self.tolerance,
        )

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32 if self.single_precision else np.float64)

    def natural_prior(self, hyper: Hyper) -> Family:
        return Dirichlet.from_concentration(np.full((self.topics, self.words), self.concentration, self.dtype))

    @classmethod
    def for_data(cls, X: np.ndarray, y: Any, **settings: Any) -> Self:
        model = cls(words=X.shape[1], **settings)
        check_numbers(model.topics * model.words, "topics")
        return model

    @property
    def features(self) -> int:
        """How many columns its inputs have."""
        return self.words

    @property
    def start(self) -> Family | None:
        return self.begin(self.init_seed) if self.given_prior is None else None

    def begin(self, seed: int = 0) -> Family:
        """A place to start from: topics that differ at random (Hoffman et al., 2013)."""
        drawn = np.random.default_rng(seed).gamma(100.0, 0.01, (self.topics, self.words))
        return Dirichlet.from_concentration(drawn.astype(self.dtype))

    def shard(self, site: int, raw: Any) -> Shard:
        """Check counts, documents by words. Documents without words are left out, and short ones come first."""
        data, order = self._read(site, raw)
        return make_shard(data, np.ones(len(order), self.dtype))

    def _read(self, site: int, raw: Any) -> tuple[Documents, np.ndarray]:
        """Documents by length, and where they were among those with words."""
        import scipy.sparse

        if not scipy.sparse.issparse(raw):
            raw = np.asarray(raw)
            if raw.dtype == object or raw.ndim != 2:
                raise ShardError(site, "documents", "expected a matrix of counts, documents by words")
        matrix = scipy.sparse.csr_array(raw)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        if matrix.shape[1] != self.words:
            raise ShardError(site, "documents", f"expected counts of {self.words} words, got {matrix.shape[1]}")
        if not np.all(np.isfinite(matrix.data)) or np.any(matrix.data < 0):
            raise ShardError(site, "documents", "counts must be finite and not negative")
        lengths = np.diff(matrix.indptr)
        kept = np.flatnonzero(lengths)
        if not len(kept):
            raise ShardError(site, "documents", "has no words at all: leave the site out")
        order = np.argsort(lengths[kept], kind="stable")
        kept = kept[order]
        place = np.arange(rounded(int(lengths.max())))
        is_word = place < lengths[kept][:, None]
        index = np.where(is_word, matrix.indptr[kept][:, None] + place, 0)
        words = np.where(is_word, matrix.indices[index], 0).astype(np.int32)
        counts = np.where(is_word, matrix.data[index], 0).astype(self.dtype)
        return Documents(words, counts), order

    def expected_log_prob(self, mean: Any, data: Documents, hyper: Hyper) -> PerRow:
        """A bound for each document, with the best shares of topics; gradients pass by how these were found."""
        table = _table(mean.expected_log)
        parts = _cut_into_parts(data)
        fixed = jax.lax.stop_gradient(table)
        # What concerns shares alone is computed here, once: gradients would go through it again.
        weight, own = jax.lax.map(lambda part: self._own_terms(self._shares(fixed, part)), parts)
        bound = jax.checkpoint(lambda pair: _words_bound(table, *pair))
        return (jax.lax.map(bound, (parts, weight)) + own).reshape(-1)[: len(data.words)]

    def log_prob(self, params: Any, data: Documents, hyper: Hyper) -> PerRow:
        """The same bound for topics that are known: what is left of log p(words | topics) is the documents' own."""
        return self.expected_log_prob(Dirichlet.Mean(jnp.log(params)), data, hyper)

    def shares(self, posterior: Any, documents: Any) -> np.ndarray:
        """The expected shares of topics in documents with words, one row for each."""
        data, order = self._read(0, documents)
        with precision(self.dtype):
            sorted_gamma = on_host(_all_shares(self, posterior, data))
        gamma = np.empty_like(sorted_gamma)
        gamma[order] = sorted_gamma
        return gamma / gamma.sum(axis=1, keepdims=True)

    def _shares(self, table: "Table", data: Documents) -> Array:
        """The γ of Dirichlet posteriors over the shares of topics."""
        alpha = self.document_concentration
        total = jnp.sum(data.counts, axis=1)
        start = jnp.broadcast_to((alpha + total / self.topics)[:, None], (len(total), self.topics))

        def ascend(likely: Array, counts: Array) -> Array:
            def step(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
                number, gamma, _ = carry
                weight = jnp.exp(_expected_logs(gamma))
                ratio = counts / jnp.maximum(jnp.einsum("nkl,nk->nl", likely, weight), LEAST)
                new = alpha + weight * jnp.einsum("nkl,nl->nk", likely, ratio)
                return number + 1, new, jnp.max(jnp.mean(jnp.abs(new - gamma), axis=1))

            def again(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
                return (carry[0] < self.iterations) & (carry[2] > self.tolerance)

            first = (jnp.zeros((), jnp.int32), start, jnp.asarray(jnp.inf, start.dtype))
            return jax.lax.while_loop(again, step, first)[1]

        return _cut(table, data, ascend)

    def _own_terms(self, gamma: Array) -> tuple[Array, Array]:
        """exp E[log share] for every topic, and what the bound of each document has beside its words."""
        alpha, K = self.document_concentration, self.topics
        expected = _expected_logs(gamma)
        own = jnp.sum((alpha - gamma) * expected + gammaln(gamma), axis=1) - gammaln(jnp.sum(gamma, axis=1))
        constant = gammaln(jnp.asarray(K * alpha, own.dtype)) - K * gammaln(jnp.asarray(alpha, own.dtype))
        return jnp.exp(expected), own + constant


class Table(NamedTuple):
    """How likely each topic makes each word, relative to the topic that makes it most likely, and that one's log."""

    likely: Array  # [words, topics]
    highest: Array  # [words]


def _table(expected_log: Array) -> Table:
    highest = jax.lax.stop_gradient(jnp.max(expected_log, axis=0))
    return Table(jnp.exp(expected_log - highest).T, highest)


def _expected_logs(gamma: Array) -> Array:
    return positive_digamma(gamma) - positive_digamma(jnp.sum(gamma, axis=1, keepdims=True))


def _words_bound(table: Table, data: Documents, weight: Array) -> Array:
    """What the bound of each document has of its words."""
    norm = jnp.einsum("nlk,nk->nl", table.likely[data.words], weight)
    return jnp.sum(data.counts * (jnp.log(jnp.maximum(norm, LEAST)) + table.highest[data.words]), axis=1)


def _cut(table: Table, data: Documents, function: Callable[[Array, Array], Array]) -> Array:
    """A function of likelihoods [documents, topics, length] and counts: of half of the places, where all documents are
    that short.
    """
    length = data.words.shape[1]
    sizes = (-(-length // 2), length)

    def cut(size: int) -> Callable[[], Array]:
        return lambda: function(jnp.swapaxes(table.likely[data.words[:, :size]], 1, 2), data.counts[:, :size])

    longest = jnp.max(jnp.sum(data.counts > 0, axis=1))
    return jax.lax.cond(longest <= sizes[0], *(cut(size) for size in sizes))


def _cut_into_parts(data: Documents) -> Documents:
    """Cut rows into parts along a leading axis, for work on one after the other; the last part is filled up."""
    size = min(AT_ONCE, len(data.words))
    parts = -(-len(data.words) // size)
    extra = parts * size - len(data.words)
    return jax.tree.map(lambda a: jnp.pad(a, ((0, extra), (0, 0))).reshape(parts, size, a.shape[1]), data)


@eqx.filter_jit
def _all_shares(model: LatentDirichletAllocation, posterior: Any, data: Documents) -> Array:
    table = _table(posterior.mean().expected_log)
    gamma = jax.lax.map(lambda part: model._shares(table, part), _cut_into_parts(data))
    return gamma.reshape(-1, model.topics)[: len(data.words)]

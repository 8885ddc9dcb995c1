"""What a factor is: an unnormalised exponential-family density, and the algebra of such densities."""

import dataclasses
import operator
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, dataclass_transform

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from partita.errors import FamilyMismatch, MissingCapability
from partita.families.cone import Cone, is_inside, is_surely_inside
from partita.families.marginals import Marginals
from partita.families.rows import as_slice, is_finite, scale_leaf, sums_of_others
from partita.foundation.runtime import (
    Array,
    dtype_of,
    in_own_precision,
    is_traced,
    on_both_sides,
    ravel,
    stack_trees,
)
from partita.foundation.shapes import Scalar

if TYPE_CHECKING:
    from partita.families.abstract_gaussian import AbstractGaussian
    from partita.families.gaussian import Gaussian
    from partita.families.mean_field import MeanField


def inner(natural: Any, mean: Any) -> Scalar:
    """⟨η, μ⟩, summed over all leaves."""
    if not is_traced((natural, mean)):
        return np.asarray(inner_on_host(natural, mean), dtype_of((natural, mean)))
    pairs = zip(jax.tree.leaves(natural), jax.tree.leaves(mean), strict=True)
    return sum((jnp.vdot(a, b) for a, b in pairs), start=jnp.zeros(()))


def inner_on_host(natural: Any, mean: Any) -> float:
    """⟨η, μ⟩ on the host, in double precision: differences of such numbers are small beside them."""
    return inners_on_host(natural, mean)[0]


def inners_on_host(natural: Any, *means: Any) -> list[float]:
    """The same with several means, for which natural parameters are converted once."""
    leaves, products = [jax.tree.leaves(mean) for mean in means], []
    with np.errstate(over="ignore", invalid="ignore"):
        for leaf, *others in zip(jax.tree.leaves(natural), *leaves, strict=True):
            double = np.asarray(leaf, np.float64)
            products.append([float(np.vdot(double, np.asarray(other, np.float64))) for other in others])
    return [sum(terms) for terms in zip(*products, strict=True)]


@dataclass_transform(frozen_default=True)
class Tree:
    """A frozen dataclass that JAX sees as a tree of its fields: like Equinox's modules, with nothing around methods.

    Fields that are named `fixed` are part of its structure instead, and have to be plain values.
    """

    fixed: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        names = [field.name for field in dataclasses.fields(cls) if field.name not in cls.fixed]  # type: ignore[arg-type]
        jax.tree_util.register_dataclass(cls, data_fields=names, meta_fields=list(cls.fixed))

    def __repr__(self) -> str:
        return eqx.tree_pformat(self, width=120)


class Substitution(NamedTuple):
    """Other coordinates: θ = matrix θ' + shift, over all of them in order; and σ = noise σ', where σ is one of them."""

    matrix: np.ndarray
    shift: np.ndarray
    noise: float = 1.0


class Family(Tree):
    """exp(⟨η, T(θ)⟩), a density up to scale; the fields of a subclass are its natural parameters η.

    Where a family has a `carrier`, densities are relative to that measure instead of dθ.

    All-zero fields are the constant function one, so a factor starts as `prior ** 0`. Multiplying
    densities adds fields, dividing subtracts, a power scales. A product or quotient may be improper;
    `is_proper` says. Each field is paired with the statistic in the same place of `statistics`, constants
    included (a Gaussian's `precision` with -½θθᵀ), so that ∇A(η) = E[T(θ)] holds field by field.
    """

    Mean: ClassVar[type]
    # What code that knows no family asks: whether the density is Gaussian (`as_gaussian`), and whether its coordinates
    # are independent of each other then (`as_mean_field`), or every quadratic log likelihood is one of its factors.
    is_gaussian: ClassVar[bool] = False
    is_mean_field: ClassVar[bool] = False
    is_full: ClassVar[bool] = False

    def __mul__(self, other: Self) -> Self:
        return self._combine(operator.add, other, "multiply")

    def __truediv__(self, other: Self) -> Self:
        return self._combine(operator.sub, other, "divide")

    def __pow__(self, power: float | Array) -> Self:
        scalar = power if isinstance(power, jax.Array) else np.asarray(power)
        return self._map(lambda leaf: leaf * scalar.astype(leaf.dtype)).project()

    def _combine(self, operation: Callable[..., Any], other: Self, verb: str) -> Self:
        if type(self) is not type(other):
            raise FamilyMismatch(f"cannot {verb} {type(self).__name__} and {type(other).__name__}")
        (leaves, structure), (others, theirs) = _flatten(self), _flatten(other)
        if structure != theirs:
            raise FamilyMismatch(f"cannot {verb} two {type(self).__name__} of different structure")
        for a, b in zip(leaves, others, strict=True):
            if np.shape(a) != np.shape(b):
                shapes = f"{np.shape(a)} and {np.shape(b)}"
                raise FamilyMismatch(f"cannot {verb} densities with parameters of shape {shapes}")
        found: Self = structure.unflatten(map(operation, leaves, others))
        return found.project()

    def _map(self, function: Callable[..., Any], *others: Self) -> Self:
        """`jax.tree.map`, with less around it: a fold has dozens of these, over arrays of which most are small."""
        leaves, structure = _flatten(self)
        found: Self = structure.unflatten(map(function, leaves, *map(structure.flatten_up_to, others)))
        return found

    def project(self) -> Self:
        """The nearest density of the family; families whose products leave it override this.

        Every product, quotient and power ends with it, for one density or a stack.
        """
        return self

    def flat(self, rows: int | None = None) -> Self:
        """The factor that says nothing, the constant function one: zeros; with `rows`, a stack of so many of them."""
        leading = () if rows is None else (rows,)
        return jax.tree.map(lambda leaf: np.zeros((*leading, *np.shape(leaf)), leaf.dtype), self)

    def copy(self) -> Self:
        """The same density in arrays of its own, on the host."""
        return self._map(np.copy)

    def is_finite(self) -> bool:
        """Whether all natural parameters are finite, on the host, for one density or a stack."""
        with np.errstate(over="ignore", invalid="ignore"):
            return all(map(is_finite, jax.tree.leaves(self)))

    # Stacks: several densities of one shape as one, whose arrays have a leading axis, one row per density. They are
    # NumPy arrays; multiplying, dividing and powers work row by row.

    @classmethod
    def stack(cls, densities: Sequence[Self]) -> Self:
        """Several densities of one family as a stack; of one density, a view."""
        if cls is Family:
            return type(densities[0]).stack(densities)
        return stack_trees(densities)

    def rows(self) -> list[Self]:
        """Each row of a stack as a density of its own; views."""
        leaves, structure = jax.tree.flatten(self)
        # Iterating over an array is quicker than indexing it, but makes numbers of arrays without further axes.
        columns = [leaf if leaf.ndim > 1 else [leaf[i, ...] for i in range(len(leaf))] for leaf in leaves]
        return [jax.tree.unflatten(structure, row) for row in zip(*columns, strict=True)]

    def row(self, index: int) -> Self:
        """One row of a stack; a view."""
        return self._map(lambda leaf: leaf[index, ...])

    @property
    def leading(self) -> int:
        """How many rows a stack has."""
        return len(jax.tree.leaves(self)[0])

    def slice_rows(self, rows: slice) -> Self:
        """Some rows of a stack that follow each other, as a stack; a view."""
        return self._map(lambda leaf: leaf[rows])

    def take_rows(self, indices: Sequence[int]) -> Self:
        """Some rows of a stack, as a stack; a view, if they follow each other."""
        places = as_slice(indices)
        return self._map(lambda leaf: leaf[places])

    def put_rows(self, indices: Sequence[int], rows: Self) -> None:
        """Write a stack of rows into this one, in place."""
        places = as_slice(indices)
        for kept, new in zip(jax.tree.leaves(self), jax.tree.leaves(rows), strict=True):
            kept[places] = new

    def product_of_rows(self) -> Self:
        """The product of all rows of a stack."""
        return self._map(lambda leaf: leaf[0] if len(leaf) == 1 else leaf.sum(axis=0)).project()

    def products_of_others(self) -> Self:
        """For each row of a stack the product of all others, without dividing: those before it times those after."""
        return self._map(sums_of_others).project()

    def scale_rows(self, shares: ArrayLike) -> Self:
        """Each row of a stack to the power of its own share; itself, where all shares are one."""
        powers = np.asarray(shares)
        if np.all(powers == 1):
            return self
        return self._map(lambda leaf: scale_leaf(leaf, powers)).project()

    def repeat(self, number: int) -> Self:
        """A stack of so many copies of one density."""
        return self._map(lambda leaf: np.repeat(np.asarray(leaf)[None], number, axis=0))

    def times_rows(self, stack: Self) -> Self:
        """A stack: this density times each row of another stack."""
        return self._map(operator.add, stack).project()

    def divide_rows(self, stack: Self) -> Self:
        """A stack: this density divided by each row of another stack."""
        return self._map(operator.sub, stack).project()

    @abstractmethod
    def log_partition(self) -> Scalar:
        """A(η) = log ∫ exp(⟨η, T(θ)⟩) dθ."""

    @abstractmethod
    def statistics(self, params: Any) -> Any:
        """T(θ), leaf by leaf as the fields."""

    @abstractmethod
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Any:
        """Independent draws with leading axes `shape`."""

    @abstractmethod
    def cone(self) -> Cone:
        """What has to be positive for the density to be proper; affine in the fields."""

    def cone_part(self) -> Self:
        """This density, or without the fields that `cone` does not look at: products of such parts cost less."""
        return self

    @classmethod
    @abstractmethod
    def from_mean(cls, mean: Any) -> Self:
        """The inverse of `mean`."""

    @abstractmethod
    def to_free(self) -> Any:
        """Unconstrained coordinates for gradient methods."""

    @abstractmethod
    def from_free(self, free: Any) -> Self:
        """The inverse of `to_free`; `self` gives only the structure."""

    def seen_from_free(self, free: Any) -> Any:
        """What `from_free` gives, or anything that answers `mean`, `kl` and the expectations as it would, faster."""
        return self.from_free(free)

    def natural_locations(self, gradient: Any) -> Any:
        """A gradient in free coordinates, in which that by locations is a natural one: times their covariance."""
        return gradient

    @in_own_precision
    def mean(self) -> Any:
        """μ = E[T(θ)] = ∇A(η)."""
        gradient = jax.grad(lambda family: family.log_partition())(self)
        return self.Mean(*(getattr(gradient, field.name) for field in dataclasses.fields(self)))

    @on_both_sides
    def is_proper(self) -> Array:
        """Whether the density can be normalised."""
        if not is_traced(self):
            return np.asarray(self.is_finite() and is_surely_inside(self.cone()))
        finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(self)]
        return jnp.all(jnp.stack(finite)) & is_inside(self.cone())

    def log_carrier(self, params: Any) -> Array | float:
        """The logarithm of the measure that densities are relative to."""
        return 0.0

    def expected_log_carrier(self) -> Array | float:
        """Its expectation."""
        return 0.0

    @in_own_precision
    def log_prob(self, params: Any) -> Scalar:
        """log q(θ) of the normalised density."""
        return inner(self, self.statistics(params)) + self.log_carrier(params) - self.log_partition()

    @on_both_sides
    def expected_log(self, factor: Self) -> Scalar:
        """E_q[log t(θ)] = ⟨η_t, μ_q⟩ for an unnormalised factor t."""
        return inner(factor, self.mean())

    @in_own_precision
    def entropy(self) -> Scalar:
        """H[q] = A(η) - ⟨η, μ⟩ - E[log carrier]."""
        return self.log_partition() - inner(self, self.mean()) - self.expected_log_carrier()

    @on_both_sides
    def kl(self, other: Self) -> Scalar:
        """KL(q ‖ p) = ⟨η_q - η_p, μ_q⟩ - A(η_q) + A(η_p)."""
        return inner(self / other, self.mean()) - self.log_partition() + other.log_partition()

    def from_gradient(self, gradient: Any) -> Self:
        """A gradient with respect to mean parameters, read as natural parameters."""
        return jax.tree.unflatten(jax.tree.structure(self), jax.tree.leaves(gradient))

    def mean_gradient(self, function: Callable[[Any], Array]) -> tuple[Array, Self]:
        """A function of the density, with its gradient in the mean parameters: C⁻¹ d/dη (Eq. 8 of the paper).

        Families whose moments are cheap to differentiate override this and avoid the Fisher matrix C.
        """
        value, gradient = jax.value_and_grad(function)(self)
        return value, self.fisher_solve(gradient)

    def fisher_solve(self, gradient: Self) -> Self:
        """C⁻¹ g, where C = d²A/dη² is the Fisher information."""
        natural, unravel = ravel(self)
        C = jax.jacfwd(lambda eta: ravel(unravel(eta).mean())[0])(natural)
        # Least squares, because C is singular where parameters are redundant (symmetric matrices, logits).
        return unravel(jnp.linalg.lstsq(C, ravel(gradient)[0])[0])

    # Capabilities: what some families have, and the others say that they have not.

    def as_gaussian(self, asked_by: str) -> "AbstractGaussian":
        """This density, if it is Gaussian; an error that says who asked, if not."""
        raise self._lacks(asked_by, "a Gaussian", lambda family: family.is_gaussian)

    def as_mean_field(self, asked_by: str) -> "MeanField":
        """This density, if it is a Gaussian with independent coordinates; an error that says who asked, if not."""
        raise self._lacks(asked_by, "a mean-field Gaussian", lambda family: family.is_mean_field)

    def as_full(self, asked_by: str) -> "Gaussian":
        """This density, if it is a Gaussian with a full covariance; an error that says who asked, if not."""
        raise self._lacks(asked_by, "a Gaussian with a full covariance", lambda family: family.is_full)

    @property
    def values(self) -> int | None:
        """How many values a draw can take, where they are finitely many."""
        return None

    def support(self) -> Any:
        """All values that a draw can take, along a leading axis, where they are finitely many."""
        raise self._lacks("support", "a density over finitely many values", _overrides("support"))

    def marginals(self, T: np.ndarray) -> Marginals:
        """What is believed of the numbers Tθ, row by row of T, over all coordinates (or weights) in order."""
        able = _overrides("marginals")
        raise self._lacks("marginals", "a density with known distributions of sums of its coordinates", able)

    def substituted(self, new: Substitution) -> tuple[Self, float]:
        """The same factor in other coordinates, and the logarithm of what it is larger by than the one returned."""
        able = _overrides("substituted")
        raise self._lacks("substituted", "a density whose coordinates may be replaced by sums of others", able)

    def _lacks(self, asked_by: str, what: str, has: Callable[[type["Family"]], bool]) -> MissingCapability:
        able = ", ".join(name for name, family in REGISTRY.items() if has(family))
        return MissingCapability(f"{asked_by}: needs {what}, not a {type(self).__name__}; that is: {able}")

    @classmethod
    def from_leaves(cls, leaves: Sequence[np.ndarray]) -> Self:
        """A density from its arrays in order, as files hold them: one for each field."""
        names = [field.name for field in dataclasses.fields(cls)]
        if cls.fixed or len(leaves) != len(names):
            raise FamilyMismatch(f"{cls.__name__}: {len(leaves)} arrays alone do not say what its fields are")
        return cls(*leaves)

    @property
    def dtype(self) -> np.dtype:
        return np.result_type(*(leaf.dtype for leaf in jax.tree.leaves(self)))

    @property
    def nbytes(self) -> int:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self))


# Families by name; `families/__init__.py` fills it.
REGISTRY: dict[str, type[Family]] = {}


def _flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a tree, and its structure, whose type JAX does not tell."""
    return jax.tree.flatten(tree)


def _overrides(method: str) -> Callable[[type[Family]], bool]:
    """Whether a family has a method of its own."""
    return lambda family: getattr(family, method) is not getattr(Family, method)

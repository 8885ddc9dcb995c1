"""Stacks of densities: every family's own algebra, row by row, is the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from test_identities import EXAMPLES

from partita.families import Family, Gamma, MeanField, Product


@pytest.fixture(params=EXAMPLES)
def rows(request) -> list[Family]:
    """Five densities of a family."""
    example = EXAMPLES[request.param]
    q, p = example.build(*example.first), example.build(*example.second)
    return [q, p, q * p, q**0.3, p**1.7 * q]


def assert_same(actual: Family, expected: Family) -> None:
    """The same family, to the last bit."""
    assert type(actual) is type(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert_array_equal(a, b)
        assert a.dtype == b.dtype


def assert_close(actual: Family, expected: Family) -> None:
    """The same up to the order in which numbers are added."""
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-14)


def shares_memory(first: Family, second: Family) -> bool:
    return all(map(np.shares_memory, jax.tree.leaves(first), jax.tree.leaves(second)))


def test_rows_undo_stack(rows):
    stack = Family.stack(rows)
    for i, (row, expected) in enumerate(zip(stack.rows(), rows, strict=True)):
        assert_same(row, expected)
        assert_same(stack.row(i), expected)
        assert shares_memory(stack.row(i), stack)
        assert shares_memory(row, stack)


def test_a_stack_of_one_is_a_view(rows):
    row = rows[0].copy()
    assert shares_memory(Family.stack([row]), row)
    assert_same(Family.stack([row]).row(0), row)


def test_rows_that_follow_each_other_are_taken_as_a_view(rows):
    stack = Family.stack(rows)
    assert shares_memory(stack.take_rows([1, 2, 3]), stack)
    assert not any(map(np.shares_memory, *map(jax.tree.leaves, (stack.take_rows([3, 1]), stack))))
    for indices in ([1, 2, 3], [3, 1], [4]):
        for taken, i in zip(stack.take_rows(indices).rows(), indices, strict=True):
            assert_same(taken, rows[i])
    assert len(stack.take_rows([]).rows()) == 0


def test_rows_are_put_in_place(rows):
    stack = rows[0].flat(5)
    kept = jax.tree.leaves(stack)
    stack.put_rows([3, 1], Family.stack(rows[:2]))
    assert all(a is b for a, b in zip(jax.tree.leaves(stack), kept, strict=True))
    for i, expected in {3: rows[0], 1: rows[1], 0: rows[0].flat(), 2: rows[0].flat(), 4: rows[0].flat()}.items():
        assert_same(stack.row(i), expected)


def test_products_over_rows(rows):
    q, stack = rows[0], Family.stack(rows)
    assert_close(stack.product_of_rows(), rows[0] * rows[1] * rows[2] * rows[3] * rows[4])
    assert_same(Family.stack(rows[:1]).product_of_rows(), q)
    for i, others in enumerate(stack.products_of_others().rows()):
        first, *rest = [row for j, row in enumerate(rows) if j != i]
        for row in rest:
            first = first * row
        assert_close(others, first)
        assert_same(q.times_rows(stack).row(i), q * rows[i])
        assert_same(q.divide_rows(stack).row(i), q / rows[i])
        assert_same(q.repeat(3).row(min(i, 2)), q)


def test_the_product_of_others_does_not_cancel(rows):
    huge = [rows[0] ** 1e20, rows[1], rows[2]]
    assert_close(Family.stack(huge).products_of_others().row(0), rows[1] * rows[2])


def test_rows_to_powers_of_their_own(rows):
    stack, shares = Family.stack(rows), [1.0, 0.5, 0.0, 2.0, -1.0]
    for scaled, row, share in zip(stack.scale_rows(shares).rows(), rows, shares, strict=True):
        assert_same(scaled, row**share)
    assert stack.scale_rows(np.ones(5)) is stack


def test_nothing_of_an_infinite_row_is_nothing(rows):
    infinite = jax.tree.map(lambda leaf: np.full_like(leaf, np.inf), rows[0])
    stack = Family.stack([infinite, rows[1]])
    assert not stack.is_finite()
    scaled = stack.scale_rows([0.0, 1.0])
    assert scaled.is_finite()
    assert_same(scaled.row(0), rows[0].flat())


def test_large_numbers_are_finite_though_their_sum_is_not():
    q = MeanField(np.full(4, 1e308), np.ones(4))
    assert q.is_finite()
    assert not MeanField(np.array([1.0, np.nan]), np.ones(2)).is_finite()


def test_copies_are_apart(rows):
    copy = rows[0].copy()
    assert_same(copy, rows[0])
    assert not any(map(np.shares_memory, *map(jax.tree.leaves, (copy, rows[0]))))


class Coarse(Family):
    """A family of its own, whose natural parameters are whole numbers: its products have to be brought back."""

    numbers: np.ndarray

    def project(self):
        return type(self)(jnp.round(self.numbers) if isinstance(self.numbers, jax.Array) else np.round(self.numbers))


@pytest.mark.parametrize("wrap", [lambda q: q, lambda q: Product({"one": q, "other": q})])
def test_every_product_ends_with_a_projection(wrap):
    a, b = (wrap(Coarse(np.array(numbers))) for numbers in ([1.4, 2.0], [3.3, 1.0]))
    stack = Family.stack([a, b, a])
    results = [
        a * b, a / b, a**0.4, stack * stack, stack.product_of_rows(), stack.products_of_others(),
        stack.scale_rows([0.3, 0.2, 1.0]), a.times_rows(stack), a.divide_rows(stack),
    ]  # fmt: skip
    for result in results:
        for leaf in jax.tree.leaves(result):
            assert_array_equal(leaf, np.round(leaf))


def test_a_family_stacks_its_own_way():
    class Padded(Gamma):
        @classmethod
        def stack(cls, densities):
            return super().stack([*densities, densities[0].flat()])

    q = Padded.from_shape_rate(np.ones(2), np.ones(2))
    assert len(Family.stack([q, q]).rows()) == 3

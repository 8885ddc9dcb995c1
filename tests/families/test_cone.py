"""How far a change may go, and a common lower bound; brute force is the reference."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose

from partita.families import Cone, Gamma, Gaussian, MeanField, NormalGamma, NormalWishart, Product
from partita.families.cone import (
    REACH,
    admissible_share,
    exceeds_rounding,
    is_inside,
    is_surely_inside,
    larger_floor,
    lower_bound,
    rounding_floor,
    shift_cone,
)

numbers = st.floats(-3, 3)
squares = arrays(np.float64, (3, 3), elements=numbers)
vectors = arrays(np.float64, 3, elements=numbers)


@st.composite
def definite(draw) -> np.ndarray:
    A = draw(squares)
    return A @ A.T + 0.1 * np.eye(3)


@st.composite
def symmetric(draw) -> np.ndarray:
    A = draw(squares)
    return A + A.T


def least(cone: Cone) -> float:
    """The smallest coordinate or eigenvalue over stacks too."""
    eigenvalues = [np.linalg.eigvalsh(matrix).ravel() for matrix in cone.definite]
    return float(np.min(np.concatenate([*(np.ravel(values) for values in cone.positive), *eigenvalues])))


def between(start: Cone, end: Cone, share: float) -> Cone:
    return jax.tree.map(lambda a, b: a + share * (b - a), start, end)


def check_share(start: Cone, end: Cone) -> None:
    """Inside at the share, on the boundary 1 / REACH further on."""
    share = admissible_share(start, end)
    assert 0 < share <= 1
    assert least(between(start, end, share)) > 0
    if share < 1:
        assert least(between(start, end, 1.001 * share / REACH)) < 0
        assert least(between(start, end, 0.999 * share / REACH)) > 0
    else:
        assert least(between(start, end, 0.999 / REACH)) > 0


@given(definite(), symmetric())
def test_share_of_a_gaussian_by_bisection(start, change):
    low, high = 0.0, 1.0 / REACH
    for _ in range(60):
        middle = 0.5 * (low + high)
        inside = np.linalg.eigvalsh(start + middle * change)[0] > 0
        low, high = (middle, high) if inside else (low, middle)
    q, end = Gaussian(np.zeros(3), start), Gaussian(np.zeros(3), start + change)
    assert_allclose(admissible_share(q.cone(), end.cone()), min(1.0, REACH * low), rtol=1e-6)


@given(vectors, vectors)
def test_share_of_positive_coordinates(start, change):
    q = MeanField(np.zeros(3), np.abs(start) + 0.1)
    check_share(q.cone(), (q * MeanField(np.zeros(3), change)).cone())


@settings(max_examples=50)
@given(vectors, definite(), symmetric(), vectors)
def test_share_of_families_with_several_constraints(location, matrix, change, border):
    gamma = Gamma.from_shape_rate(np.array([2.0, 0.5]), np.array([1.0, 3.0]))
    starts = [
        NormalGamma.from_parameters(location, matrix, 2.0, 1.5),
        NormalWishart.from_parameters(location, 2.0, matrix, 4.0),
        Product({"a": gamma, "b": Gaussian(location, matrix)}),
    ]
    changes = [
        NormalGamma(border[0], border[1], border, change),
        NormalWishart(border[0], change, border, border[1]),
        Product({"a": Gamma(border[:2], border[1:]), "b": Gaussian(border, change)}),
    ]
    for q, c in zip(starts, changes, strict=True):
        check_share(q.cone(), (q * c).cone())


@settings(max_examples=30, deadline=None)
@given(definite(), symmetric())
def test_the_density_itself_agrees(matrix, change):
    q, c = Gaussian(np.zeros(3), matrix), Gaussian(np.zeros(3), change)
    share = admissible_share(q.cone(), (q * c).cone())
    assert (q * c**share).is_proper()
    if share < 1:
        assert not (q * c ** (1.01 * share / REACH)).is_proper()


@given(st.lists(st.tuples(definite(), symmetric(), vectors), min_size=2, max_size=4))
def test_a_stack_takes_the_smallest_share_of_its_members(members):
    starts = [Cone((np.abs(v) + 0.1,), (a,)) for a, _, v in members]
    ends = [Cone((np.abs(v) + 0.1 + v,), (a + c,)) for a, c, v in members]
    start, end = (jax.tree.map(lambda *leaves: np.stack(leaves), *cones) for cones in (starts, ends))
    singly = [admissible_share(a, b) for a, b in zip(starts, ends, strict=True)]
    assert_allclose(admissible_share(start, end), min(singly), rtol=1e-9)


@pytest.mark.parametrize("edge", [0.0, -1.0])
def test_nothing_is_admissible_from_the_boundary_or_beyond(edge):
    matrices = Cone(definite=(np.diag([1.0, edge]),)), Cone(definite=(np.diag([1.0, edge - 1]),))
    values = Cone((np.array([1.0, edge]),)), Cone((np.array([1.0, edge - 1]),))
    assert admissible_share(*matrices) == 0
    assert admissible_share(*values) == 0


@given(definite(), definite(), vectors, vectors)
def test_lower_bound_is_below_both_and_touches_both(first, second, a, b):
    bound = lower_bound([Cone((a,), (first,)), Cone((b,), (second,))])
    (values,), (matrix,) = bound
    scale = 1e-9 * (np.abs(first).max() + np.abs(second).max())
    assert_allclose(values, np.minimum(a, b))
    gaps = [np.linalg.eigvalsh(other - matrix) for other in (first, second)]
    assert min(gap[0] for gap in gaps) >= -scale
    # Every direction is bounded by one of the two, so the ranks of the gaps add up to three at most.
    assert sum(int(np.sum(gap > 1e3 * scale)) for gap in gaps) <= 3
    assert np.linalg.eigvalsh(matrix)[0] > -scale


@given(definite(), definite(), symmetric())
def test_a_share_that_suits_the_lower_bound_suits_both(first, second, change):
    bound = lower_bound([Cone(definite=(first,)), Cone(definite=(second,))])
    share = admissible_share(bound, Cone(definite=(bound.definite[0] + change,)))
    for matrix in (first, second):
        assert np.linalg.eigvalsh(matrix + share * change)[0] > 0


def test_shifted_moves_a_bound_by_as_much_as_what_it_bounds():
    start, end = Cone((np.ones(2),), (np.eye(2),)), Cone((np.array([3.0, 0.0]),), (np.diag([2.0, 5.0]),))
    moved = shift_cone(Cone((np.zeros(2),), (np.zeros((2, 2)),)), start, end)
    assert_allclose(moved.positive[0], [2, -1])
    assert_allclose(moved.definite[0], np.diag([1.0, 4.0]))


@pytest.mark.parametrize(
    ("cone", "inside"),
    [
        (Cone((np.array([2.0]),), (np.eye(2),)), True),
        (Cone((np.array([2.0, 0.0]),)), False),
        (Cone((np.array([2.0, np.nan]),)), False),
        (Cone((np.array([2.0]),), (np.array([[1.0, 2.0], [2.0, 1.0]]),)), False),
        (Cone(definite=(np.stack([np.eye(2), -np.eye(2)]),)), False),
        (Cone(definite=(np.full((2, 2), np.nan),)), False),
        (Cone(), True),
    ],
)
def test_inside_is_the_same_on_the_host_and_traced(cone, inside):
    assert bool(is_inside(cone)) is inside
    assert bool(is_surely_inside(cone)) is inside


@given(
    arrays(np.float32, 4, elements=st.floats(-1, 2.0**40, width=32)),
    arrays(np.float32, 4, elements=st.floats(-1, 2.0**40, width=32)),
    arrays(np.float32, 4, elements=st.floats(0, 2.0**20, width=32)),
)
def test_numbers_that_exceed_rounding_leave_room_for_all_between_them(start, end, floor):
    a, b = Cone((start,)), Cone((end,))
    beside = larger_floor(Cone((floor,)), larger_floor(rounding_floor(a), rounding_floor(b)))
    if exceeds_rounding((start, end), floor):
        assert np.all(start > beside.positive[0])
        assert np.all(end > beside.positive[0])
        assert admissible_share(a, b, beside) > 0.9 * REACH


def test_numbers_exceed_rounding_where_they_are_alike_and_not_where_one_is_none():
    some = np.array([1.0, 1e4], np.float32)
    assert exceeds_rounding((some, 2 * some), np.zeros(2))
    for wrong in (-1.0, 0.0, 1e12, np.inf, np.nan):
        assert not exceeds_rounding((some, np.array([2.0, wrong], np.float32)), np.zeros(2))
        assert not exceeds_rounding((np.array([wrong, 2.0], np.float32), some), np.zeros(2))

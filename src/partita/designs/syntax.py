"""What is written in a formula, as Python's syntax tree has it: literals, contrasts, powers, depth."""

import ast
from collections.abc import Iterable
from typing import Any

import numpy as np

from partita.errors import InputError

CONSTANTS = ("pi", "e", "inf")
CONTRASTS = ("Treatment", "Poly", "Sum", "Helmert", "Diff")
# The most brackets within brackets, and the largest number in a power of numbers.
DEEPEST, LARGEST_POWER = 100, 1000


def is_elementwise(name: str) -> bool:
    """Ufuncs are, but for those with a signature, such as matmul."""
    function = getattr(np, name, None)
    return isinstance(function, np.ufunc) and function.signature is None and function.nout == 1


def check_power(left: ast.AST, right: ast.AST) -> None:
    """Powers of numbers with each other are worked out in whole numbers of any length."""
    if has_names(left) or has_names(right):
        return
    for side in (left, right):
        value = read_literal(side)
        if not isinstance(value, int | float) or abs(value) > LARGEST_POWER:
            raise InputError(f"formula: {ast.unparse(left)[:50]}**{ast.unparse(right)[:50]}: write the number")


def has_names(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Name) for part in ast.walk(node))


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_literal(node: ast.AST) -> bool:
    """Numbers, words, and lists of them."""
    return read_literal(node) is not None or (isinstance(node, ast.Constant) and node.value is None)


def read_literal(node: ast.AST) -> Any:
    """What a literal says; None, if it is none."""
    if isinstance(node, ast.Attribute) and ast.unparse(node) in [f"np.{name}" for name in CONSTANTS]:
        return getattr(np, node.attr)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None


def is_contrast(node: ast.AST) -> bool:
    """contr.sum, contr.treatment("b"), Treatment("b")."""
    match node:
        case ast.Call(func=function, args=arguments, keywords=keywords):
            values: Iterable[ast.AST] = (*arguments, *(keyword.value for keyword in keywords))
            return is_contrast(function) and all(map(is_literal, values))
        case ast.Attribute(value=ast.Name(id="contr"), attr=name):
            return not name.startswith("_")
        case ast.Name(id=name):
            return name in CONTRASTS
    return False


def measure_depth(node: ast.AST) -> int:
    """How many levels of brackets and operators there are, without recursion."""
    level, depth = [node], 0
    while level and depth <= DEEPEST:
        level, depth = [child for one in level for child in ast.iter_child_nodes(one)], depth + 1
    return depth

"""What a formula may say: columns, and functions that give the value of a row from that row alone.

Every site evaluates a formula on its own rows. A mean, a rank or a lag would then be of that site's rows, and what
comes out would be no regression on all data. So only what is known to be elementwise is let through; as a formula can
then call nothing else, one that comes from a file is safe to read.
"""

import ast
import inspect
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.designs.syntax import (
    CONSTANTS,
    DEEPEST,
    LARGEST_POWER,
    check_power,
    is_contrast,
    is_elementwise,
    is_literal,
    is_text,
    measure_depth,
    read_literal,
)
from partita.errors import InputError
from partita.foundation.checks import is_whole

# A column's name, in backticks if it is not a plain one.
NAME = r"(`[^`]+`|[\w.]+)"
RANDOM_INTERCEPT = re.compile(rf"\+?\s*\(\s*1\s*\|\s*{NAME}\s*\)")
QUOTED = re.compile(r"""\bQ\(\s*(?:"([^"`]+)"|'([^'`]+)')\s*\)""")
# The most characters, terms, and degrees of polynomials.
LONGEST, MOST_TERMS, LARGEST_DEGREE = 20_000, 10_000, 50

OPERATORS = ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow | ast.BitAnd | ast.BitOr
COMPARISONS = ast.Eq | ast.NotEq | ast.Lt | ast.LtE | ast.Gt | ast.GtE
# Names that formulaic knows and that are elementwise.
ELEMENTWISE = ("I", "log", "log10", "log2", "exp", "exp2")
# Functions of numpy that are, though they are no ufuncs: how many arguments vary by row; all others are literals.
OF_NUMPY = {"where": 3, "clip": 3, "round": 1, "around": 1, "digitize": 1, "interp": 1, "isin": 1, "sinc": 1}
METHODS = ("abs", "between", "clip", "isin", "round")
# Transforms that take nothing from the data once these arguments are numbers.
TO_BE_GIVEN = {
    "bs": ("lower_bound", "upper_bound"),
    "cr": ("knots", "lower_bound", "upper_bound"),
    "cs": ("knots", "lower_bound", "upper_bound"),
    "cc": ("knots", "lower_bound", "upper_bound"),
    "poly": ("raw",),
    "scale": ("center", "scale"),
    "standardize": ("center", "rescale"),
}
INSTEAD = "use numbers that all sites know, such as I((age - 50) / 10)"


@dataclass(frozen=True)
class Parsed:
    """A formula that each site can evaluate on its own rows."""

    left: Any = field(repr=False)
    right: Any = field(repr=False)
    # The columns that it reads, those of its left and of its right side, and those whose values are levels even if they
    # are numbers.
    names: tuple[str, ...]
    targets: tuple[str, ...]
    inputs: tuple[str, ...]
    categorical: tuple[str, ...]
    # For each term of the right side, the columns whose levels have a coefficient each, if they have levels.
    expanded: tuple[tuple[str, ...], ...]
    group: str | None


def parse(formula: str) -> Parsed:
    """What a formula says; an error, if it says something that needs rows of other sites."""
    fixed, group = _split_group(formula)
    from formulaic import Formula, SimpleFormula
    from formulaic.errors import FormulaicError
    from formulaic.parser import DefaultFormulaParser

    try:
        if _count_terms(DefaultFormulaParser().get_ast(fixed)) > MOST_TERMS:
            raise InputError(f"formula: has more than {MOST_TERMS:,} terms: write the interactions that you mean")
        parsed = Formula(fixed)
        left, right = parsed.lhs, parsed.rhs
    except InputError:
        raise
    except (FormulaicError, AttributeError, SyntaxError, ValueError, RecursionError):
        left = right = None
    if not (isinstance(left, SimpleFormula) and isinstance(right, SimpleFormula)):
        if "|" in fixed:
            raise InputError(
                f"formula: of terms with |, only one random intercept (1 | group) is known; got {formula!r}"
            )
        raise _unreadable(formula)
    found = parse_terms(left, right, group)
    _check_target(found)
    return found


def parse_terms(left: Any, right: Any, group: str | None) -> Parsed:
    """The same of both sides as formulaic has them."""
    readings = [_read_term(term) for term in right]
    of_left, of_right = _merge(map(_read_term, left)), _merge(readings)
    if "Intercept" in of_right.looked_up:
        raise InputError(
            "formula: a column called Intercept would be taken for the formula's own: give it another name"
        )
    return Parsed(
        left,
        right,
        names=tuple(sorted(of_left.names | of_right.names)),
        targets=tuple(sorted(of_left.names)),
        inputs=tuple(sorted(of_right.names)),
        categorical=tuple(sorted(of_left.categorical | of_right.categorical)),
        expanded=tuple(tuple(sorted(one.looked_up | one.categorical)) for one in readings),
        group=group,
    )


def _check_target(parsed: Parsed) -> None:
    """Check that the target is no function of the inputs.

    A change from a baseline is none, as in I(after - before) ~ before. A formula that comes from a file was fitted
    once, and is not asked again.
    """
    targets, known = set(parsed.targets), {*parsed.inputs, parsed.group}
    if not targets:
        raise InputError("formula: the target, left of ~, is no column: write the name of the column to be explained")
    if targets <= known:
        shown = " and ".join(f"`{name}`" for name in sorted(targets))
        raise InputError(
            f"formula: the target {str(parsed.left).strip()!r} is made of {shown}, which the right side has too: it "
            f"would be explained by itself; leave {shown} out of the right side"
        )


def _split_group(formula: Any) -> tuple[str, str | None]:
    """The part that formulaic reads, and the group that has intercepts of its own."""
    if not isinstance(formula, str) or "~" not in formula or len(formula) > LONGEST:
        raise _unreadable(formula)
    formula = QUOTED.sub(lambda found: f"`{found[1] or found[2]}`", formula)
    groups = RANDOM_INTERCEPT.findall(formula)
    fixed = RANDOM_INTERCEPT.sub("", formula)
    if len(groups) > 1:
        raise InputError(f"formula: of terms with |, only one random intercept (1 | group) is known; got {formula!r}")
    left, _, right = fixed.partition("~")
    return (f"{left}~ 1" if not right.strip(" +") else fixed), (groups[0].strip("`") if groups else None)


def _count_terms(tree: Any) -> int:
    """How many terms there may be when a*b*c*... and (a + b + ...)**n are written out, without doing so."""
    order, counts = [tree], dict[int, int]()
    for node in order:
        order.extend(getattr(node, "args", ()))
    for node in reversed(order):
        inner = [counts[id(part)] for part in getattr(node, "args", ())]
        symbol = node.operator.symbol if inner else ""
        power = str(node.args[1]) if symbol in ("**", "^") else ""
        if power.isdecimal():
            counts[id(node)] = inner[0] ** min(int(power), LARGEST_POWER)
        else:
            several = symbol in ("*", "/", ":", "in", "%in%")
            counts[id(node)] = math.prod(1 + one for one in inner) if several else max(1, sum(inner))
        counts[id(node)] = min(counts[id(node)], MOST_TERMS + 1)
    return counts[id(tree)]


def _unreadable(formula: Any) -> InputError:
    return InputError(f"formula: expected something like 'y ~ age + C(clinic)', got {str(formula)[:200]!r}")


def _read_term(term: Any) -> "_Reading":
    reading = _Reading()
    for factor in term.factors:
        kind = factor.eval_method.value
        if kind == "lookup":
            reading.names.add(factor.expr)
            reading.looked_up.add(factor.expr)
        elif kind == "python":
            reading.read(factor.expr)
        elif kind != "literal":
            raise InputError(f"formula: {factor.expr!r} is neither a column nor a number")
    return reading


def _merge(readings: Iterable["_Reading"]) -> "_Reading":
    merged = _Reading()
    for one in readings:
        merged.names |= one.names
        merged.looked_up |= one.looked_up
        merged.categorical |= one.categorical
    return merged


@dataclass
class _Reading:
    """Goes through what formulaic would evaluate, and lets through what it knows."""

    names: set[str] = field(default_factory=set)
    looked_up: set[str] = field(default_factory=set)
    categorical: set[str] = field(default_factory=set)

    def read(self, expression: str) -> None:
        from formulaic.utils.code import sanitize_variable_names

        self.aliases: dict[str, str] = {}
        try:
            node = ast.parse(sanitize_variable_names(expression, {}, self.aliases), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise InputError(f"formula: {expression!r} cannot be read") from None
        if measure_depth(node) > DEEPEST:
            raise InputError(f"formula: {expression[:200]!r} is nested too deeply")
        self.value(node)

    def value(self, node: ast.AST) -> None:
        """Something that has one value per row."""
        match node:
            case ast.Constant(value=bool() | int() | float()):
                pass
            case ast.Name(id=name):
                self.names.add(self.aliases.get(name, name))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert(), operand=inner):
                self.value(inner)
            case ast.BinOp(left=left, op=operator, right=right) if isinstance(operator, OPERATORS):
                if isinstance(operator, ast.Pow):
                    check_power(left, right)
                self.value(left)
                self.value(right)
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if isinstance(operator, COMPARISONS):
                for side in (left, right):
                    if not is_text(side):
                        self.value(side)
            case ast.Attribute(value=ast.Name(id="np"), attr=name) if name in CONSTANTS:
                pass
            case ast.Call(func=function, args=arguments, keywords=keywords):
                self.call(node, function, arguments, keywords)
            case _:
                raise _refusal(node)

    def call(self, node: ast.AST, function: ast.AST, arguments: list[ast.expr], keywords: list[ast.keyword]) -> None:
        match function:
            case ast.Name(id="C"):
                self.levels(node, arguments, keywords)
            case ast.Name(id=name) if name in TO_BE_GIVEN:
                self.transform(name, node, arguments, keywords)
            case ast.Name(id=name) if name in ELEMENTWISE:
                self.arguments(node, arguments, keywords, len(arguments))
            case ast.Attribute(value=ast.Name(id="np"), attr=name) if name in OF_NUMPY or is_elementwise(name):
                if name == "where" and len(arguments) != 3:
                    raise _refusal(node)
                self.arguments(node, arguments, keywords, OF_NUMPY.get(name, len(arguments)))
            case ast.Attribute(value=inner, attr=name) if name in METHODS:
                self.value(inner)
                self.arguments(node, arguments, keywords, 0)
            case _:
                raise _refusal(node)

    def arguments(
        self, node: ast.AST, arguments: Sequence[ast.expr], keywords: Sequence[ast.keyword], by_row: int
    ) -> None:
        """The first so many vary by row, the others are literals."""
        for argument in arguments[:by_row]:
            # np.clip(age, 0, None) has no upper bound.
            if not (isinstance(argument, ast.Constant) and argument.value is None):
                self.value(argument)
        for argument in (*arguments[by_row:], *(keyword.value for keyword in keywords)):
            if not is_literal(argument):
                raise _refusal(node)
        if any(keyword.arg in (None, "out", "where", "dtype") for keyword in keywords):
            raise _refusal(node)

    def levels(self, node: ast.AST, arguments: list[ast.expr], keywords: list[ast.keyword]) -> None:
        """C(column), with contrasts that know levels only."""
        if not arguments or not isinstance(arguments[0], ast.Name):
            raise InputError(
                "formula: C() takes a column, whose levels all sites tell: make what it holds a column first"
            )
        name = self.aliases.get(arguments[0].id, arguments[0].id)
        self.names.add(name)
        self.categorical.add(name)
        for argument in (*arguments[1:], *(keyword.value for keyword in keywords)):
            if not (is_literal(argument) or is_contrast(argument)):
                raise _refusal(node)

    def transform(self, name: str, node: ast.AST, arguments: list[ast.expr], keywords: list[ast.keyword]) -> None:
        """Splines and the like, whose knots and bounds are given."""
        from formulaic.transforms import TRANSFORMS

        if not arguments:
            raise _refusal(node)
        self.value(arguments[0])
        self.arguments(node, arguments[1:], keywords, 0)
        try:
            named = {str(keyword.arg): keyword.value for keyword in keywords}
            bound = inspect.signature(TRANSFORMS[name]).bind(*arguments, **named).arguments
        except TypeError as error:
            raise InputError(f"formula: {ast.unparse(node)}: {error}") from None
        given = {key: read_literal(argument) for key, argument in list(bound.items())[1:]}
        _check_given(name, node, given)


def _check_given(name: str, node: ast.AST, given: dict[str, Any]) -> None:
    shown = f"formula: {ast.unparse(node)} depends on all data, which nobody has: "
    if name == "poly" and given.get("raw") is not True:
        raise InputError(f"{shown}say raw=True, and x, x**2, ... are used as they are; or {INSTEAD}")
    # True asks for the data's own mean or deviation.
    open_ones = [key for key in TO_BE_GIVEN[name] if given.get(key) is None or (name != "poly" and given[key] is True)]
    if open_ones or given.get("df") is not None or isinstance(given.get("constraints"), str):
        raise InputError(f"{shown}give {_say_wanted(name)}")
    degree = given.get("degree", 1)
    if not (is_whole(degree, 0) and degree <= LARGEST_DEGREE):
        raise InputError(f"formula: {ast.unparse(node)}: degree: expected a whole number of at most {LARGEST_DEGREE}")


def _say_wanted(name: str) -> str:
    if name in ("scale", "standardize"):
        return f"{' and '.join(TO_BE_GIVEN[name])} as numbers, or {INSTEAD}"
    return "knots=[...], lower_bound=... and upper_bound=... as numbers, and no df or centring"


def _refusal(node: ast.AST) -> InputError:
    shown = ast.unparse(node)[:200]
    match node:
        case ast.Call(func=ast.Name(id="offset")):
            return InputError(
                "formula: offsets are not known: an exposure n is a column, log(n), whose coefficient is learnt"
            )
        case ast.Call(func=ast.Name(id="center")):
            return InputError(f"formula: {shown} depends on all data, which nobody has: {INSTEAD}")
        case ast.Call(func=ast.Name(id="factor")):
            return InputError(f"formula: {shown}: levels are written as C(column)")
        case ast.Call(func=ast.Name(id=name)) if name in OF_NUMPY or is_elementwise(name):
            return InputError(f"formula: {shown}: write np.{name}")
        case ast.BinOp(op=ast.BitXor()):
            return InputError(f"formula: {shown}: write ** for powers")
        case ast.Call(func=ast.Name(id="Q")):
            return InputError(f"formula: {shown}: Q() takes a column's name in quotes; or write it in backticks")
        case ast.Attribute(value=ast.Name(id=name), attr=rest) if name != "np":
            return InputError(f"formula: {shown}: a column's name with a dot is written in backticks, `{name}.{rest}`")
        case ast.BoolOp():
            return InputError(f"formula: {shown}: write & for and, | for or, with each side in brackets")
        case ast.Constant(value=str()):
            return InputError(f"formula: {shown}: text can only be compared with, as in I(arm == 'drug')")
    return InputError(
        f"formula: {shown} is not known to give a row's value from that row alone. Each site has a part of the rows, "
        f"so a mean, a rank, a sum or a lag would be another one at each: {INSTEAD}. Known are operators, "
        "comparisons, log, exp, numpy's elementwise functions (np.sqrt, np.where, ...), C(), poly(raw=True), and bs() "
        "and cr() with knots and bounds"
    )

"""What the store's pocket calculator answers."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

_ALLOWED = frozenset("0123456789+-*/(). ")
_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculate(expression: str) -> str:
    """The value of an arithmetic expression, rounded to 2 places, or why there is none. Nothing is ever executed."""
    if not _ALLOWED.issuperset(expression):
        return "Error: invalid characters in expression"
    try:
        return str(round(float(_value(ast.parse(expression.strip(), mode="eval").body)), 2))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError) as problem:
        return f"Error: {problem}"


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case _:
            raise ValueError(f"cannot evaluate {ast.unparse(node)!r}")

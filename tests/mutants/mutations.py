"""Finds the mutants of a source file: small faults, each of which replaces one span of its text.

Left alone is what cannot change behaviour, and texts for people: docstrings, annotations, names of type variables,
`TYPE_CHECKING` blocks, imports, decorators, overloads, `__all__`, `__slots__`, asserts, f-strings (Python 3.11 does not
know where their parts stand), and sentences in log calls and in what is raised.
"""

from __future__ import annotations

import ast
import random
import re
import textwrap
import warnings
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Any

OPPOSITES = {"==": "!=", "is": "is not", "in": "not in"}  # each makes a condition its negation
OPERATORS = OPPOSITES | dict(zip(OPPOSITES.values(), OPPOSITES, strict=True))
OPERATORS |= {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "and": "or", "or": "and", "+": "-", "-": "+", "*": "/"}
OPERATORS |= {"/": "*", "//": "/", "%": "*", "**": "*", "@": "*", "<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "&"}
CONSTANTS = {
    bool: lambda value: [not value],
    int: lambda value: [value + 1, value - 1],
    float: lambda value: [value * 2 + 1],
    str: lambda value: [f"XX{value}"],
    bytes: lambda value: [b"XX" + value],
    type(None): lambda _: [0],
}
TYPE_NAMES = {"TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "TypeAliasType", "Literal", "Annotated", "cast"}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log", "warn"}
NOT_RUN = {"annotation", "returns", "decorator_list", "type_params"}  # fields of nodes
REMOVED = ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Raise | ast.Delete | ast.Continue | ast.Break
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: the bytes from `start` to `end` of the file are replaced by `new`."""

    path: str
    start: int
    end: int
    old: str
    new: str
    lines: range  # those of the span: a test that runs none of them cannot find the fault
    statement: int  # the first line of its statement, for lines that Python does not count
    at_import: bool  # it is run when the module is imported, which may be before all tests

    @property
    def id(self) -> str:
        return f"{self.path}:{self.start}-{self.end}:{self.new}"

    def __str__(self) -> str:
        old, new = (textwrap.shorten(text, 60, placeholder="...") for text in (self.old, self.new))
        return f"{self.path}:{self.lines[0]} {old!r} -> {new!r}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    def difference(self, source: bytes) -> str:
        """Its line before and after; only the span if that has several lines."""
        if len(self.lines) > 1:
            return str(self)
        before, after = (text.split(b"\n")[self.lines[0] - 1].decode().strip() for text in (source, self.apply(source)))
        return f"{self.path}:{self.lines[0]} `{before}` -> `{after}`"

    def is_sound(self, source: bytes) -> bool:
        """Whether it compiles without a warning, and has another syntax tree than the original."""
        mutated = self.apply(source)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                compile(mutated, self.path, "exec")
            except (SyntaxError, SyntaxWarning, ValueError):
                return False
        return ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))


def sample(sources: dict[str, bytes], count: int, seed: int) -> list[Mutant]:
    """Draw mutants of each file in proportion to its executable lines, from as many different lines as there are."""
    found = {path: finder.found for path in sorted(sources) if (finder := Finder(path, sources[path])).found}
    sizes = {path: executable_lines(sources[path]) for path in found}
    shares = {path: count * size / sum(sizes.values()) for path, size in sizes.items()}
    quotas = {path: int(share) for path, share in shares.items()}
    for path in sorted(shares, key=lambda path: (quotas[path] - shares[path], path))[: count - sum(quotas.values())]:
        quotas[path] += 1
    drawn = []
    for path, mutants in found.items():
        random.Random(f"{seed} {path}").shuffle(mutants)
        of_lines = {mutant.lines[0]: mutant for mutant in mutants}  # one of each line
        mutants.sort(key=lambda mutant: of_lines[mutant.lines[0]] is not mutant)
        sound = (mutant for mutant in mutants if mutant.is_sound(sources[path]))
        drawn += sorted(islice(sound, quotas[path]), key=lambda mutant: (mutant.start, mutant.id))
    return drawn


def executable_lines(source: bytes) -> int:
    return len({node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)})


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _stored_in(node: ast.AST) -> list[str]:
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]


class Finder:
    """Finds all mutants of a file (`found`), some of which may not be sound."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.found = path, source, list[Mutant]()
        self.begin = [0, *accumulate(map(len, source.splitlines(keepends=True)), initial=0)]  # where line N begins
        self.statement, self.function = 1, None
        self.sentences: set[ast.AST] = set()
        self.visit(ast.parse(source))

    def visit(self, node: ast.AST) -> None:
        if self.is_left_alone(node):
            return
        place = self.statement, self.function
        self.statement = node.lineno if isinstance(node, ast.stmt) else self.statement
        self.mutate(node)
        for field, value in ast.iter_fields(node):
            self.function = node if isinstance(node, FUNCTION) and field == "body" else place[1]
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and field not in NOT_RUN:
                    self.visit(child)
        self.statement, self.function = place

    def is_left_alone(self, node: ast.AST) -> bool:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.JoinedStr() | ast.Expr(value=ast.Constant()):
                return True
            case ast.If(test=test):
                return "TYPE_CHECKING" in map(_name, ast.walk(test))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return "overload" in map(_name, node.decorator_list)
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
                return _name(target) in ("__all__", "__slots__")
            case ast.Call(func=kind) | ast.Subscript(value=kind) if _name(kind) in TYPE_NAMES:
                return True
            case ast.Raise() | ast.Call(func=ast.Attribute()):
                if isinstance(node, ast.Raise) or node.func.attr in LOG_METHODS:
                    self.sentences.update(
                        part for part in ast.walk(node) if _is_text(part) and " " in ast.unparse(part)
                    )
        return False

    def mutate(self, node: ast.AST) -> None:
        match node:
            case ast.Compare():
                self.swap(node.left, *node.comparators)
            case ast.BinOp() if not (_is_text(node.left) or _is_text(node.right)):
                self.swap(node.left, node.right)
            case ast.BoolOp():
                self.swap(*node.values)
            case ast.AugAssign():
                self.swap(node.target, node.value)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.add(node, self.text(operand))
            case ast.Constant() if node not in self.sentences and type(node.value) in CONSTANTS:
                for new in CONSTANTS[type(node.value)](node.value):
                    self.add(node, f"({new})" if new == -1 else repr(new))
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant) or value.value:
                self.add(value, "None")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test]):
                is_ordered = isinstance(test, ast.Compare) and isinstance(
                    test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE
                )
                if is_ordered or not isinstance(test, ast.Compare | ast.UnaryOp):  # those have a mutant that does it
                    self.add(test, f"(not ({self.text(test)}))")
        if isinstance(node, REMOVED) and self.function is not None and self.is_missed(node):
            self.add(node, "pass")
        if isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While | ast.Try) and node.orelse:
            if not self.text(node.orelse[0]).startswith("elif"):
                self.add(node.orelse, "pass")

    def is_missed(self, node: Any) -> bool:
        """Whether its removal leaves more than a name without a value, which any test finds that runs the next line."""
        arguments = [part.arg for part in ast.walk(self.function.args) if isinstance(part, ast.arg)]
        names = arguments + _stored_in(self.function)
        return isinstance(node, ast.AugAssign) or all(names.count(name) > 1 for name in _stored_in(node))

    def swap(self, *operands: ast.expr) -> None:
        """Replace each operator between two operands."""
        for left, right in pairwise(operands):
            start, end = self.span(left)[1], self.span(right)[0]
            code = re.sub(rb"#.*", lambda comment: b" " * len(comment[0]), self.source[start:end])
            operator = re.search(rb"is\s+not|not\s+in|[^\s()\\]+", code)
            text = " ".join(operator[0].decode().split())
            end = "=" if text.endswith("=") and text not in OPERATORS else ""
            if new := OPERATORS.get(text.removesuffix(end)):
                self.add((start + operator.start(), start + operator.end()), new + end)

    def text(self, node: Any) -> str:
        return self.source[slice(*self.span(node))].decode()

    def span(self, node: Any) -> tuple[int, int]:
        first, last = (node[0], node[-1]) if isinstance(node, list) else (node, node)
        return self.begin[first.lineno] + first.col_offset, self.begin[last.end_lineno] + last.end_col_offset

    def add(self, place: Any, new: str) -> None:
        start, end = place if isinstance(place, tuple) else self.span(place)
        first, last = (bisect_right(self.begin, byte) - 1 for byte in (start, end - 1))
        rest = self.source[start:end].decode(), new, range(first, last + 1), self.statement, self.function is None
        self.found.append(Mutant(self.path, start, end, *rest))

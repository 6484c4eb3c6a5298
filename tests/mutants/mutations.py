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
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Any

OPERATORS = {"==": "!=", "is": "is not", "in": "not in", "<": "<=", ">": ">=", "and": "or", "+": "-", "*": "/"}
OPERATORS |= {"<<": ">>", "&": "|"} | {new: old for old, new in OPERATORS.items()}
OPERATORS |= {">>": "<<", "|": "&", "^": "&", "//": "/", "%": "*", "**": "*", "@": "*"}
CONSTANTS = {bool: lambda it: [not it], int: lambda it: [it + 1, it - 1], float: lambda it: [it * 2 + 1]}
CONSTANTS |= {str: lambda it: [f"XX{it}"], bytes: lambda it: [b"XX" + it], type(None): lambda _: [0]}
TYPE_NAMES = {"TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "TypeAliasType", "Literal", "Annotated", "cast"}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log", "warn"}
NOT_RUN = {"annotation", "returns", "decorator_list", "type_params"}  # fields of nodes
REMOVED = ast.Expr | ast.AugAssign | ast.Raise | ast.Delete | ast.Continue | ast.Break
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

    def __str__(self) -> str:
        old, new = (textwrap.shorten(text, 60, placeholder="...") for text in (self.old, self.new))
        return f"{self.path}:{self.lines[0]} {old!r} -> {new!r}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    def is_sound(self, source: bytes) -> bool:
        """Whether it compiles without a warning, and has another syntax tree than the original."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                compile(mutated := self.apply(source), self.path, "exec")
            except (SyntaxError, ValueError):
                return False
        return ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))


def sample(sources: dict[str, bytes], count: int, seed: int) -> list[Mutant]:
    """Draw mutants of each file in proportion to its executable lines, from as many different lines as there are."""
    found = {path: finder for path in sorted(sources) if (finder := Finder(path, sources[path])).found}
    ends = [0, *accumulate(len(finder.executable) for finder in found.values())]
    shares = Counter(bisect_right(ends, (number + 0.5) * ends[-1] / count) - 1 for number in range(count))
    drawn = []
    for number, (path, finder) in enumerate(found.items()):
        random.Random(f"{seed} {path}").shuffle(finder.found)
        of_lines = {mutant.lines[0]: mutant for mutant in reversed(finder.found)}  # its first
        order = sorted(finder.found, key=lambda mutant: of_lines[mutant.lines[0]] is not mutant)
        sound = (mutant for mutant in order if mutant.is_sound(sources[path]))
        drawn += sorted(islice(sound, shares[number]), key=lambda mutant: (mutant.start, mutant.end, mutant.new))
    return drawn


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", "") or getattr(node, "id", "")


class Finder:
    """Finds all mutants of a file (`found`), some of which may not be sound, and its `executable` lines."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.found = path, source, list[Mutant]()
        self.begin = [0, *accumulate(map(len, source.splitlines(keepends=True)), initial=0)]  # where line N begins
        self.statement, self.function = 1, None
        self.executable, self.sentences = set[int](), set[ast.AST]()
        self.visit(ast.parse(source))

    def visit(self, node: ast.AST) -> None:
        if self.is_left_alone(node):
            return
        place = self.statement, self.function
        if isinstance(node, ast.stmt):
            self.statement = node.lineno
            self.executable.add(node.lineno)
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
                    texts = (part for part in ast.walk(node) if isinstance(part, ast.Constant))
                    self.sentences.update(text for text in texts if " " in str(text.value))
        return False

    def mutate(self, node: ast.AST) -> None:
        match node:
            case ast.Compare():
                self.swap(node.left, *node.comparators)
            case ast.BoolOp():
                self.swap(*node.values)
            case ast.BinOp() if not {"'", '"'} & set(ast.unparse(node)):  # texts have no other operators
                self.swap(node.left, node.right)
            case ast.AugAssign():
                self.swap(node.target, node.value)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.add(self.span(node), f"({self.text(operand)})")
            case ast.Constant() if node not in self.sentences and type(node.value) in CONSTANTS:
                for new in CONSTANTS[type(node.value)](node.value):
                    self.add(self.span(node), f"({new})" if new == -1 else repr(new))
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant) or value.value:
                self.add(self.span(value), "None")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test]):
                if not isinstance(test, ast.Compare | ast.UnaryOp):  # these have a mutant of their own
                    self.add(self.span(test), f"(not ({self.text(test)}))")
        # A local name that is not assigned is found by any test that runs the next line.
        is_set = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
        if self.function is not None and (is_set or isinstance(node, REMOVED)):
            self.add(self.span(node), "pass")
        orelse = isinstance(node, ast.stmt) and getattr(node, "orelse", None)
        if orelse and not self.text(orelse[0]).startswith("elif"):
            self.add((self.span(orelse[0])[0], self.span(orelse[-1])[1]), "pass")

    def swap(self, *operands: ast.expr) -> None:
        """Replace each operator between two operands."""
        for left, right in pairwise(operands):
            start, end = self.span(left)[1], self.span(right)[0]
            code = re.sub(rb"#.*", lambda comment: b" " * len(comment[0]), self.source[start:end])
            operator = re.search(rb"is\s+not|not\s+in|[^\s()\\]+", code)
            text = " ".join(operator[0].decode().split())
            assigns = "=" if text not in OPERATORS and text.endswith("=") else ""
            new = OPERATORS[text.removesuffix(assigns)] + assigns
            self.add((start + operator.start(), start + operator.end()), new)

    def span(self, node: Any) -> tuple[int, int]:
        return self.begin[node.lineno] + node.col_offset, self.begin[node.end_lineno] + node.end_col_offset

    def text(self, node: ast.AST) -> str:
        return self.source[slice(*self.span(node))].decode()

    def add(self, span: tuple[int, int], new: str) -> None:
        old = self.source[slice(*span)].decode()
        lines = range(bisect_right(self.begin, span[0]) - 1, bisect_right(self.begin, span[1] - 1))
        self.found.append(Mutant(self.path, *span, old, new, lines, self.statement, self.function is None))

"""What the commands of the larger benchmarks have in common."""

from __future__ import annotations

import argparse


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """The options that each of them has."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    made.add_argument("--limit", type=positive, metavar="N", help="only the first N runs of each set")
    made.add_argument("--json", action="store_true", help="facts for machines in place of the tables")
    return made


def positive(text: str) -> int:
    """A number, 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number

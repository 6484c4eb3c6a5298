"""`python -m benchmarks.onemachine faults`: what is measured of the tier in a file, by name."""

from __future__ import annotations

import sys

from benchmarks.onemachine import costs, faults

COMMANDS = {"costs": costs.main, "faults": faults.main}


def main() -> int:
    """Run the command that is named."""
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print(f"usage: python -m benchmarks.onemachine {{{','.join(COMMANDS)}}} ...", file=sys.stderr)
        return 2
    return COMMANDS[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())

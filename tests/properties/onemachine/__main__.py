"""`python -m tests.properties.onemachine`: explore everything, and print what was found."""

from __future__ import annotations

import sys
import time

from tests.properties.checker import explore
from tests.properties.onemachine import protocol
from tests.properties.onemachine.configurations import AMPUTATIONS, CONFIGURATIONS, DISPENSABLE, LIMIT


def main() -> int:
    """Print each verdict; 1 if any is not the one that is wanted."""
    started, states, wrong = time.monotonic(), 0, 0
    for name, configuration in CONFIGURATIONS.items():
        verdict = explore(protocol.model(configuration), LIMIT)
        states += verdict.states
        wrong += not verdict.holds
        show(f"{name}: {verdict}")
    show(f"\n{states:,} states in {time.monotonic() - started:.0f} s. What each part is for:\n")
    for part, (rules, configuration) in AMPUTATIONS.items():
        verdict = explore(protocol.model(configuration, rules), LIMIT)
        wrong += verdict.holds
        show(f"{part}: {verdict}")
    show("\nWhat may be left out, since another part does the same:\n")
    for part, (rules, configurations) in DISPENSABLE.items():
        for name in configurations:
            verdict = explore(protocol.model(CONFIGURATIONS[name], rules), LIMIT)
            wrong += not verdict.holds
            show(f"{part} ({name}): {verdict}")
    return int(wrong > 0)


def show(line: str) -> None:
    """At once: the next one may take seconds."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

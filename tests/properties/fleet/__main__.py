"""`python -m tests.properties.fleet`: explore everything, and print what was found."""

from __future__ import annotations

import sys
import time

from tests.properties.checker import explore
from tests.properties.fleet import protocol
from tests.properties.fleet.channels import Channels, SplitRoot
from tests.properties.fleet.configurations import (
    AMPUTATIONS,
    AMPUTATIONS_OF_CHANNELS,
    AMPUTATIONS_OF_MIXING,
    AMPUTATIONS_OF_SPLITTING,
    AMPUTATIONS_OF_STUTTER,
    AMPUTATIONS_OF_TRUST,
    CONFIGURATIONS,
)
from tests.properties.fleet.stutter import Stutter
from tests.properties.fleet.trust import Trust


def main() -> int:
    """Print each verdict; 1 if any is not the one that is wanted."""
    started, states, wrong = time.monotonic(), 0, 0
    whole = {name: protocol.model(configuration) for name, configuration in CONFIGURATIONS.items()}
    others = {
        "trust in local copies": Trust().model(),
        "channels of local copies": Channels().model(),
        "a root that is split": SplitRoot().model(),
        "a root that is split, beside an earlier version": SplitRoot(is_mixed=True).model(),
        "a server that stutters": Stutter().model(),
        "a server that stutters, and a commit that is not waited for": Stutter(is_announced=True).model(),
    }
    for name, model in {**whole, **others}.items():
        verdict = explore(model)
        states += verdict.states
        wrong += not verdict.holds
        show(f"{name}: {verdict}")
    show(f"\n{states:,} states in {time.monotonic() - started:.0f} s. What each part is for:\n")
    parts = {part: protocol.model(CONFIGURATIONS[name], rules) for part, (rules, name) in AMPUTATIONS.items()}
    trust = {f"{part} (trust)": Trust(rules).model() for part, rules in AMPUTATIONS_OF_TRUST.items()}
    channels = {f"{part} (channels)": Channels(rules).model() for part, rules in AMPUTATIONS_OF_CHANNELS.items()}
    stutter = {f"{part} (stutter)": Stutter(rules).model() for part, rules in AMPUTATIONS_OF_STUTTER.items()}
    split = {f"{part} (split)": SplitRoot(rules).model() for part, rules in AMPUTATIONS_OF_SPLITTING.items()}
    mixed = {
        f"{part} (split)": SplitRoot(rules, is_mixed=True).model() for part, rules in AMPUTATIONS_OF_MIXING.items()
    }
    for part, model in {**parts, **trust, **channels, **split, **mixed, **stutter}.items():
        verdict = explore(model)
        wrong += verdict.holds
        show(f"{part}: {verdict}")
    return int(wrong > 0)


def show(line: str) -> None:
    """At once: the next one may take seconds."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

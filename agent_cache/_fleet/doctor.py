"""`agent-cache doctor`: whether a server is fit for a tier, what is wrong, and what to do about it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Callable

from agent_cache._fleet import trials
from agent_cache._fleet.findings import Check, note
from agent_cache._fleet.patient import Patient
from agent_cache._fleet.screen import print_json, shown
from agent_cache._fleet.servers import opened
from agent_cache.cli import doctor as health
from agent_cache.remote.redis.wire import ReplyError

__all__ = ["doctor"]

Examination = Callable[[Patient], AsyncIterator[Check]]

_CHECKS: tuple[Examination, ...] = (
    health.version,
    health.role,
    health.cluster,
    health.memory,
    health.persistence,
    health.replication,
    health.clients,
    trials.rights,
    trials.messages,
    trials.round_trips,
    trials.clock,
)
_COLOURS = {"fine": "\033[32m", "note": "\033[36m", "finding": "\033[31m"}


async def doctor(options: argparse.Namespace) -> int:
    """Run the command."""
    found: dict[str, list[Check]] = {}
    async with opened(options.url, options.namespace, options.timeout) as servers:
        for server in servers.all:
            patient = await Patient.admitted(servers, server, options.tier_timeout)
            checks = found.setdefault(str(server), [])
            if not options.json:
                print(f"{server}, namespace {options.namespace!r}")
            try:
                for examine in _CHECKS:
                    async for check in _carried_out(examine, patient):
                        checks.append(check)
                        if not options.json:
                            _show(check)
                    if any(check.name == "role" for check in checks):
                        break  # nothing may be written here
            finally:
                await patient.clean_up()
    findings = sum(check.verdict == "finding" for checks in found.values() for check in checks)
    if options.json:
        print_json({
            "namespace": options.namespace,
            "findings": findings,
            "servers": {name: [check.as_dict() for check in checks] for name, checks in found.items()},
        })  # fmt: skip
    else:
        print(
            "nothing is wrong" if not findings else f"{findings} {'thing is' if findings == 1 else 'things are'} wrong"
        )
    return 1 if findings else 0


async def _carried_out(examine: Examination, patient: Patient) -> AsyncIterator[Check]:
    try:
        async for check in examine(patient):
            yield check
    except ReplyError as error:  # most likely a right that is missing, of which `rights` speaks
        yield note(examine.__name__.replace("_", " "), f"could not be looked at: {error}")


def _show(check: Check) -> None:
    verdict = f"{check.verdict:<7}"
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        verdict = f"{_COLOURS[check.verdict]}{verdict}\033[0m"
    print(f"  {verdict}  {check.name:<12} {shown(check.says)}")
    if check.do:
        print(f"{'':24}-> {check.do}")

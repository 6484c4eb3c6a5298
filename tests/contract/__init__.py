"""The contract of tiers: subclass `TierContract` in a test module, and define how two clients of one server are made.

class TestMyTier(TierContract):
    async def advance(self, seconds):  # time is moved, and never waited for
        clock.advance(seconds)

    async def make_tiers(self):
        options = {"lease": self.lease, "max_staleness": self.max_staleness}
        return MyTier(url, **options), MyTier(url, **options)
"""

from tests.contract.claims import ClaimTests
from tests.contract.inheritance import InheritanceTests
from tests.contract.leases_and_messages import LeaseTests, OutageTests, SubscriptionTests
from tests.contract.reads_and_writes import LateTagTests, ReadTests, WriteTests
from tests.contract.ttls import TtlTests

__all__ = ["TierContract"]


class TierContract(
    ReadTests,
    WriteTests,
    LateTagTests,
    InheritanceTests,
    LeaseTests,
    SubscriptionTests,
    OutageTests,
    TtlTests,
    ClaimTests,
):
    """The promises of `Tier`, as tests. `Workbench` lists what a subclass overrides, each with a default or a skip.

    Override `make_tiers` and `advance`; `arrive` if messages take time; `cut` and `reconnect`,
    `stop_server` and `start_server` if the test can make that happen. Tests that need a missing one are skipped.
    """

"""The contract of tiers: subclass `TierContract` in a test module, and define how two clients of one server are made.

class TestMyTier(TierContract):
    max_staleness = 0.1  # as the tiers are made
    moment = 0.1         # a ttl or a hold that is really waited for: longer than a call takes

    short_lease = 0.2    # one that is really waited for

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

    Override `make_tiers`; `advance` if time can be moved; `arrive` if messages take time; `cut` and `reconnect`,
    `stop_server` and `start_server` if the test can make that happen. Tests that need a missing one are skipped.
    """

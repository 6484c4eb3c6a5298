"""What every tier must do: subclass `TierContract`, say how two clients of one server are made, and run pytest.

    class TestMyTier(TierContract):
        max_staleness = 0.1  # as the tiers are made
        moment = 0.1         # a ttl or a hold that is really waited for: longer than a call takes

        async def make_tiers(self):
            return MyTier(url, lease=0.2, max_staleness=0.1), MyTier(url, lease=0.2, max_staleness=0.1)

The tests are coroutines: with pytest-asyncio, set ``asyncio_mode = "auto"`` or put ``@pytest.mark.asyncio`` on the
subclass.
"""

from __future__ import annotations

from tests.contract.late_tags import LateTagTests
from tests.contract.leases import LeaseTests
from tests.contract.news import NewsTests
from tests.contract.outages import OutageTests
from tests.contract.reads import ReadTests
from tests.contract.writes import WriteTests

__all__ = ["TierContract"]


class TierContract(ReadTests, WriteTests, LateTagTests, LeaseTests, NewsTests, OutageTests):
    """The promises of `Tier`, as tests. See `Workbench` for what a subclass says, each with a default or a skip.

    Override `make_tiers`; `advance` if time can be moved; `arrive` if messages take time to get through; `cut` and
    `reconnect`, `stop_server` and `start_server` if those things can be made to happen. Without them the tests that
    need them are skipped.
    """

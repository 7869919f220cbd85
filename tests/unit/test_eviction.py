"""A broker that evicts is refused, whatever its limit."""

from __future__ import annotations

import pytest

from memory_tasks import eviction
from producer import errors


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
def test_any_evicting_policy_is_refused_with_what_to_set(policy):
    with pytest.raises(errors.SettingsRefused, match="maxmemory-policy noeviction") as caught:
        eviction.check({"maxmemory_policy": policy, "maxmemory": 0})
    assert caught.value.setting == "MEMORY_BROKER_URL"


def test_noeviction_and_a_server_that_tells_no_policy_are_taken():
    eviction.check({"maxmemory_policy": "noeviction"})
    eviction.check({})

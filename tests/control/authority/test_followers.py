"""What agents said about bundles: known at once, kept with the next sweep or with the rotation that relies on it."""

from __future__ import annotations

from typing import Any

from ztdpu.control.authority.followers import Followers


def behind(followers: Followers, fleet: Any, sequence: int) -> tuple[str, ...]:
    with fleet.transaction() as transaction:
        return followers.behind(transaction, sequence)


async def test_what_was_said_is_kept_in_one_transaction(make_agent: Any, process: Any) -> None:
    for name in ("dpu-0", "dpu-1"):
        await (await make_agent(name)).attest()
    fleet, followers = process.fleet, Followers(process.fleet)
    assert behind(followers, fleet, 7) == ("dpu-0", "dpu-1")
    followers.note("dpu-0", 7)
    with fleet.transaction() as transaction:
        assert followers.sequences(transaction) == {"dpu-0": 7}  # known at once
        assert Followers(fleet).sequences(transaction) == {}  # and not in the store yet
    followers.note("dpu-1", 6)
    followers.sweep()
    assert behind(followers, fleet, 7) == ("dpu-1",)
    with fleet.transaction() as transaction:
        assert Followers(fleet).sequences(transaction) == {"dpu-0": 7, "dpu-1": 6}  # as after a crash


async def test_a_rotation_relies_on_nothing_that_is_not_durable(make_agent: Any, process: Any) -> None:
    await (await make_agent()).attest()
    fleet, followers = process.fleet, Followers(process.fleet)
    followers.note("dpu-0", 7)
    assert behind(followers, fleet, 7) == ()
    assert behind(Followers(fleet), fleet, 7) == ()  # before any sweep
    followers.note("dpu-0", 3)  # an older bundle: it was started anew from its file
    assert behind(followers, fleet, 7) == ("dpu-0",)

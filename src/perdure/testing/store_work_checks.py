"""The part of the store contract about work: queues, priorities, caps, and how much waits."""

from __future__ import annotations

import asyncio
from collections import Counter

from msgspec.structs import replace

from perdure.core.capacity import Capacity
from perdure.core.views import Summary
from perdure.ports import Claim, Store
from perdure.testing.store_samples import READY, START, Beside, MakeStore, batch, expect, first

MANY = 12


async def check_queues(make_store: MakeStore, beside: Beside = None) -> None:
    """A session is found in the queue of its next tool, else in its agent's; and only for agents that are asked for."""
    gpu = replace(READY, queue="gpu'\x00")
    async with make_store() as store:
        await store.append(first("own", 1, summary=READY))
        await store.append(first("tool", 1, summary=gpu, at=START + 1))
        await store.append(first("other", 1, summary=replace(gpu, agent="teller"), at=START + 2))
        row = await store.get("tool")
        expect(row is not None and (row.agent, row.summary.queue) == ("clerk", "gpu'\x00"), "the row has both names")
        for queues, agents, wanted in (
            (["clerk"], None, ["own"]),
            (["gpu'\x00"], None, ["tool", "other"]),
            (["gpu'\x00"], ["clerk"], ["tool"]),
            (None, ["clerk"], ["own", "tool"]),
            (None, [], []),
            (["gpu'\x00", "clerk", "teller"], ["teller"], ["other"]),
        ):
            found = list(await store.runnable(queues, agents=agents, now=START))
            expect(found == wanted, f"of queues {queues} and agents {agents} these are found: {wanted} ({found})")
        await store.append(batch("tool", 1, 2, summary=READY))
        await store.append(batch("own", 1, 2, summary=gpu))
        expect(list(await store.runnable(["clerk"], now=START)) == ["tool"], "the last append says the queue")


async def check_priorities(make_store: MakeStore, beside: Beside = None) -> None:
    """A level of priority counts as 30 s of waiting: higher ones come first, and lower ones come at last."""
    async with make_store() as store:
        for name, priority, at in (("old", 0, 0.0), ("new", 0, 50.0), ("high", 1, 29.0), ("higher", 2, 75.0)):
            await store.append(first(name, 1, summary=replace(READY, priority=priority), at=START + at))
        await store.append(first("due", 1, summary=Summary("clerk", wake_at=START + 40, priority=1)))
        await store.append(first("low", 1, summary=replace(READY, priority=-1000), at=START))
        found = list(await store.runnable(None, now=START + 90))
        expect(found == ["high", "old", "due", "higher", "new", "low"], f"priority is worth waiting ({found})")
        await store.append(batch("new", 1, 2, summary=replace(READY, priority=9)))
        expect((await store.runnable(None, now=START + 90))[0] == "new", "the last append says the priority")


async def check_caps(make_store: MakeStore, beside: Beside = None) -> None:
    """Many claims at once never exceed a cap of their tenant or agent, and what was let go makes room."""
    async with make_store() as store:
        for number in range(MANY):
            await store.append(first(f"a{number}", 1, tenant="a'\x00", summary=READY, at=START + number))
        for number in range(4):
            summary = replace(READY, agent=("clerk", "*")[number % 2])
            await store.append(first(f"b{number}", 1, tenant="*", summary=summary, at=START + MANY + number))
        if beside is None:
            await _crowd(store, store)
        else:
            async with beside(store) as other:
                await _crowd(store, other)


async def _crowd(store: Store, other: Store) -> None:
    await store.join("x")
    await other.join("y")
    three = Capacity(per_tenant=3)
    tries = [((store, "x"), (other, "y"))[number % 2] for number in range(MANY)]
    asked = [one.claim(f"a{number}", owner, capacity=three) for number, (one, owner) in enumerate(tries)]
    claims = await asyncio.gather(*asked)
    held = [number for number, claim in enumerate(claims) if claim is not None]
    expect(len(held) == 3, f"of many claims at once as many hold as the cap says ({claims})")
    late = next(number for number in range(MANY) if number not in held)
    expect(await store.claim(f"a{late}", "x", capacity=three) is None, "one more is refused")
    expect(await store.claim("b0", "x", capacity=three) == Claim(1, 1), "another tenant has room of its own")
    mine = f"a{held[0]}"
    owner = tries[held[0]]
    again = await owner[0].claim(mine, owner[1], capacity=three)
    expect(again is not None and again.epoch == 2, "its own session does not stand in anybody's way")
    expect(list(await store.runnable(None, now=START, capacity=three)) == ["b1", "b2"], "who is full is not offered")
    expect(await owner[0].release(mine, epoch=2, head=1), "one is let go")
    found = list(await other.runnable(None, now=START, capacity=three))
    expect(found[0][0] == "a" and sorted(found[1:]) == ["b1", "b2"], f"as many as there is room for ({found})")
    expect(await other.claim(f"a{late}", "y", capacity=three) == Claim(1, 1), "and that makes room for another")
    await _by_name(store, other)
    await store.leave("x")
    await other.leave("y")


async def _by_name(store: Store, other: Store) -> None:
    """Now 3 sessions of clerk's are driven for one tenant and 1 for the other."""
    for capacity, session, may in (
        (Capacity(per_agent=4), "b2", False),
        (Capacity(per_agent=5), "b2", True),
        (Capacity(per_agent={"clerk": 4}), "b1", True),
        (Capacity(per_tenant={"*": 9, "a'\x00": 0}), "b3", True),
        (Capacity(per_tenant={"a'\x00": 3}, per_agent={"*": 99}), "a0 … a11", False),
    ):
        waiting = [session]
        if " " in session:
            rows = [await store.get(f"a{number}") for number in range(MANY)]
            waiting = [row.uid for row in rows if row is not None and row.owner is None][:1]
        claim = await other.claim(waiting[0], "y", capacity=capacity)
        expect((claim is not None) == may, f"{capacity} {'lets' if may else 'does not let'} {waiting[0]} be claimed")
    found = list(await store.runnable(None, now=START, capacity=Capacity(per_agent={"clerk": 7})))
    expect(len(found) == 2, f"a cap of an agent bounds what is offered ({found})")


async def check_fair_lists(make_store: MakeStore, beside: Beside = None) -> None:
    """Where there are caps, a tenant with much work does not keep others from being found."""
    async with make_store() as store:
        for number in range(30):
            await store.append(first(f"a{number}", 1, tenant="a", summary=READY, at=START + number))
        for number in range(3):
            summary = replace(READY, agent="teller", priority=number)
            await store.append(first(f"b{number}", 1, tenant="b", summary=summary, at=START + 100))
        found = list(await store.runnable(None, now=START, limit=4, capacity=Capacity(per_tenant=2)))
        expect(found == ["a0", "b2", "a1", "b1"], f"tenants take turns, each in its own order ({found})")
        found = list(await store.runnable(None, now=START, limit=4, capacity=Capacity(per_agent={"teller": 1})))
        expect(found == ["a0", "b2", "a1"], f"and so do agents ({found})")
        found = list(await store.runnable(None, now=START, limit=4))
        expect(found == ["a0", "a1", "a2", "a3"], "without caps the longest waiting come first")


async def check_waiting(make_store: MakeStore, beside: Beside = None) -> None:
    """What has work and no living owner is counted, up to a limit."""
    async with make_store() as store:
        tenants = Counter({"a'": 5, "": 2})
        for tenant, number in tenants.items():
            for at in range(number):
                await store.append(first(f"{tenant}{at}", 1, tenant=tenant, summary=READY))
        await store.append(first("later", 1, summary=Summary("clerk", "waiting", wake_at=START + 60)))
        await store.append(first("idle", 1))
        for tenant, limit, wanted in ((None, 99, 7), ("a'", 99, 5), ("", 99, 2), ("a'", 3, 3), ("nobody", 9, 0)):
            count = await store.count_waiting(tenant, now=START, limit=limit)
            expect(count == wanted, f"of tenant {tenant!r} {wanted} wait, counted up to {limit} ({count})")
        expect(await store.count_waiting(None, now=START + 60, limit=99) == 8, "what is due has work")
        await store.join("x")
        await store.claim("a'0", "x")
        expect(await store.count_waiting("a'", now=START, limit=99) == 4, "what is driven does not wait")
        await store.leave("x")
        expect(await store.count_waiting("a'", now=START, limit=99) == 5, "what a leaver drove does")

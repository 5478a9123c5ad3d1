"""The part of the store contract about sessions: ownership, lists, deletion, forks, artifacts, drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perdure.core.errors import Conflict, NotFound, Refused, UsageError
from perdure.core.views import Pending, Summary
from perdure.ports import Claim, SessionQuery, Store
from perdure.testing.store_samples import (
    IDLE,
    READY,
    START,
    Beside,
    MakeStore,
    batch,
    data_of,
    expect,
    first,
    refused,
)

PENDING = Pending("p1", "approval", "s", 1, "charge", {"cents": 990, "to": "\x00'"}, "May I?", START + 60)
WAITING = Summary("clerk", "waiting", wake_at=START + 60, pending=(PENDING,))


async def check_row(make_store: MakeStore, beside: Beside = None) -> None:
    """A session's row shows the summary of its last append, and what it was opened with."""
    async with make_store() as store:
        await store.append(first("s", 1, tenant="acme", metadata={"order": "7"}, summary=READY))
        row = await store.get("s")
        expect(row is not None and row.summary == READY, "the row has the summary")
        expect(row is not None and (row.agent, row.status) == ("clerk", "running"), "agent and status are shown")
        expect(row is not None and row.metadata == {"order": "7"}, "metadata is kept")
        expect(row is not None and (row.head, row.epoch, row.owner) == (1, 0, None), "nobody owns a new session")
        expect(row is not None and row.created_at == row.updated_at == START, "times are the entries'")
        other = Summary("teller", "waiting", wake_at=START + 9.5, pending=WAITING.pending)
        changed = batch("s", 1, 2, summary=other)
        await store.append(replace(changed, entries=(replace(changed.entries[0], at=START + 3),)))
        row = await store.get("s")
        expect(row is not None and row.summary == other, f"the row has the last summary ({row})")
        expect(row is not None and row.agent == "teller", "the row has the last agent")
        expect(row is not None and row.created_at == START and row.updated_at == START + 3, "times move on")
        for summary in (other, READY, READY, IDLE):
            head = row.head if row else 0
            await store.append(batch("s", head, "more", summary=summary))
            row = await store.get("s")
            expect(row is not None and row.summary == summary, "every append's summary is the row's")
        hostile = replace(PENDING, arguments={"x": float("nan"), "y": "\ud800"})
        await store.append(batch("s", 6, 7, summary=replace(WAITING, pending=(hostile,))))
        row = await store.get("s")
        shown = row.summary.pending[0].arguments if row and row.summary.pending else None
        expect(shown == {"x": None, "y": "\ufffd"}, f"what a summary cannot say in JSON is cleaned ({shown})")
        expect(await store.get("nobody") is None, "an unknown uid has no row")
        expect(await store.find("acme", "nobody") is None, "an unknown id has no row")
        imported = first("t", 1, tenant="acme")
        await store.append(replace(imported, opening=imported.opening and replace(imported.opening, epoch=7)))
        await store.join("a")
        claim = await store.claim("t", "a")
        expect(claim is not None and claim.epoch == 8, "a session may begin with an epoch that others have used")


async def check_claim_and_release(make_store: MakeStore, beside: Beside = None) -> None:
    """One living owner at a time, whichever store object it joined through."""
    async with make_store() as store:
        await store.append(first("s", 1))
        await refused(UsageError, store.claim("s", "a"), "who has not joined cannot claim")
        expect(list(await store.owners()) == [], "nobody has joined")
        await store.join("a")
        await store.join("a")
        expect(list(await store.owners()) == ["a"], "who joined is living, once")
        await refused(NotFound, store.claim("nobody", "a"), "an unknown session cannot be claimed")
        await refused(NotFound, store.release("nobody", epoch=1, head=1), "nor released")
        expect(await store.claim("s", "a") == Claim(1, 1), "a free session can be claimed")
        expect(await store.claim("s", "a") == Claim(2, 1), "its owner may claim again, with a new epoch")
        if beside is None:
            await _contend(store, store)
        else:
            async with beside(store) as other:
                await _contend(store, other)


async def _contend(store: Store, other: Store) -> None:
    await other.join("b'\x00/..")
    for either in (store, other):
        expect(sorted(await either.owners()) == ["a", "b'\x00/.."], "everybody sees all who are living")
    expect(await other.claim("s", "b'\x00/..") is None, "a living owner's session cannot be claimed")
    row = await other.get("s")
    expect(row is not None and (row.owner, row.epoch) == ("a", 2), "a refused claim changes nothing")
    await other.append(batch("s", 1, 2))
    expect(not await store.release("s", epoch=2, head=1), "a release for an old head does not happen")
    expect(await other.claim("s", "b'\x00/..") is None, "what was not released is still owned")
    expect(await store.release("s", epoch=2, head=2), "a release for the present head happens")
    expect(await other.claim("s", "b'\x00/..") == Claim(3, 2), "a released session can be claimed")
    expect(await store.claim("s", "a") is None, "and then belongs to the other")
    expect(await store.claim("s", "a", force=True) == Claim(4, 2), "unless force is used")
    await store.leave("a")
    await store.leave("a")
    row = await store.get("s")
    expect(row is not None and row.owner is None, "who leaves gives up what it owns")
    expect(await other.claim("s", "b'\x00/..") == Claim(5, 2), "and others may claim it")
    await refused(UsageError, store.claim("s", "a"), "who left cannot claim")
    await other.leave("b'\x00/..")
    expect(list(await store.owners()) == [], "who left is not living")


async def check_heirs(make_store: MakeStore, beside: Beside = None) -> None:
    """A claim says who died holding the session, and only that; workers say of themselves what they said."""
    async with make_store() as store:
        await store.append(first("s", 1))
        await store.append(first("t", 1))
        await store.join("a'", {"version": "1", "pid": 7, "agents": ["clerk", "\x00"]})
        await store.join("b")
        expect((await store.claim("s", "a'")) == Claim(1, 1), "a new session is nobody's heritage")
        expect((await store.claim("s", "a'")) == Claim(2, 1), "nor is one's own")
        expect((await store.claim("s", "b", force=True)) == Claim(3, 1), "nor what was taken by force from the living")
        await store.claim("t", "b")
        workers = [(worker.owner, worker.sessions, worker.about) for worker in await store.workers()]
        about = {"version": "1", "pid": 7, "agents": ["clerk", "\x00"]}
        expect(workers == [("a'", 0, about), ("b", 2, {})], f"workers are listed with what they hold ({workers})")
        expect(await store.release("s", epoch=3, head=1), "it is released")
        expect((await store.claim("s", "a'")) == Claim(4, 1), "what was released has no heir")
        await store.leave("a'")
        expect((await store.claim("s", "b")) == Claim(5, 1), "nor has what somebody left behind")
        expect([worker.owner for worker in await store.workers()] == ["b"], "who left is not listed")


async def check_runnable(make_store: MakeStore, beside: Beside = None) -> None:
    """What has work, or is due, is found until somebody living owns it; longest waiting first."""
    agents = ["clerk"]
    async with make_store() as store:
        await store.append(first("later", 1, summary=Summary("clerk", "waiting", wake_at=START + 60)))
        await store.append(first("young", 1, summary=READY, at=START + 90))
        await store.append(first("old", 1, summary=READY, at=START + 30))
        await store.append(first("idle", 1))
        await store.append(first("foreign", 1, summary=replace(READY, agent="someone'; --")))
        expect(list(await store.runnable(agents, now=START)) == ["old", "young"], "work is found, oldest first")
        found = await store.runnable([*agents, "someone'; --"], now=START + 60)
        expect(list(found) == ["foreign", "old", "later", "young"], f"and what is due, of all agents ({found})")
        expect(list(await store.runnable(agents, now=START + 60, limit=1)) == ["old"], "the limit holds")
        expect(list(await store.runnable([], now=START + 60)) == [], "no agents, no work")
        anybody = list(await store.runnable(None, now=START + 60))
        expect(anybody == ["foreign", "old", "later", "young"], "None is the work of any agent")
        expect(
            list(await store.runnable(None, now=START + 60, limit=1)) == anybody[:1], "the limit holds for any agent"
        )
        await store.join("a")
        claim = await store.claim("old", "a")
        expect(list(await store.runnable(agents, now=START)) == ["young"], "what is owned is not offered")
        await store.append(batch("old", 1, 2, summary=READY, epoch=claim.epoch if claim else 0))
        expect(await store.release("old", epoch=1, head=2), "the owner releases it")
        expect("old" in await store.runnable(agents, now=START), "what was released with work is offered")
        await store.append(batch("young", 1, 2))
        expect(list(await store.runnable(agents, now=START)) == ["old"], "what has no more work is not offered")
        await store.append(batch("idle", 1, 2, summary=READY))
        expect("idle" in await store.runnable(agents, now=START), "a command wakes an idle session")
        await store.claim("old", "a")
        await store.leave("a")
        expect("old" in await store.runnable(agents, now=START), "what a leaver owned is offered")


async def check_list(make_store: MakeStore, beside: Beside = None) -> None:
    """Filters all hold; pages come without gap or repeat, newest first, whatever is opened in between."""
    async with make_store() as store:
        for number in range(10):
            await store.append(
                first(
                    f"s{number}",
                    1,
                    tenant="even" if number % 2 == 0 else "odd'",
                    metadata={"number": str(number), "k'--": "\x00v", "third": str(number % 3)},
                    summary=WAITING if number == 4 else READY if number > 6 else IDLE,
                )
            )
        expect(await _listed(store, SessionQuery()) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], "newest comes first")
        expect(await _listed(store, SessionQuery(tenant="odd'")) == [9, 7, 5, 3, 1], "tenant filters")
        expect(await _listed(store, SessionQuery(status="running")) == [9, 8, 7], "status filters")
        expect(await _listed(store, SessionQuery(pending=True)) == [4], "pending filters")
        expect(await _listed(store, SessionQuery(agent="nobody")) == [], "agent filters")
        both = SessionQuery(agent="clerk", metadata={"k'--": "\x00v", "third": "0"}, tenant="even")
        expect(await _listed(store, both) == [6, 0], "all filters hold together")
        expect(await _listed(store, SessionQuery(metadata={"number": "x' OR 1=1 --"})) == [], "values are values")
        expect(await _listed(store, SessionQuery(metadata={"' OR 1=1 --": "1"})) == [], "keys are keys")
        for limit in (1, 3, 5, 10, 11):
            page = await store.list(SessionQuery(limit=limit))
            seen = [row.uid for row in page.rows]
            await store.append(first(f"new-{limit}", 1))
            while page.cursor is not None:
                page = await store.list(SessionQuery(limit=limit, cursor=page.cursor))
                expect(0 < len(page.rows) <= limit, "a page is not empty and not too long")
                seen += [row.uid for row in page.rows]
            expect(seen[-10:] == [f"s{number}" for number in reversed(range(10))], "pages fit together")
            expect(len(seen) == len(set(seen)), "pages do not overlap")
        for cursor in ("", "x", "before-", "before-zz", "before--1", "before-' OR 1", "before-" + "f" * 99):
            await refused(UsageError, store.list(SessionQuery(cursor=cursor)), f"{cursor!r} is no cursor")
        await refused(UsageError, store.list(SessionQuery(limit=0)), "a page has at least one row")


async def check_triggers(make_store: MakeStore, beside: Beside = None) -> None:
    """Sessions with triggers are found, those that watch files apart, as their last append says."""
    async with make_store() as store:
        many, watching = replace(IDLE, wake_at=START + 60, triggers=2), replace(IDLE, triggers=3, watches=1)
        for number, summary in enumerate((IDLE, many, watching, many)):
            metadata = {"number": str(number)}
            await store.append(first(f"s{number}", 1, summary=summary, metadata=metadata, tenant="t" * (number == 3)))
        row = await store.get("s2")
        expect(row is not None and row.summary == watching, f"the row has the numbers ({row})")
        expect(await _listed(store, SessionQuery(triggers=True)) == [3, 2, 1], "sessions with triggers are found")
        expect(await _listed(store, SessionQuery(triggers=True, tenant="t")) == [3], "of one tenant, too")
        expect(await _listed(store, SessionQuery(watches=True)) == [2], "and those that watch files")
        expect(await _listed(store, SessionQuery(watches=True, status="waiting")) == [], "all filters hold together")
        found = await store.list(SessionQuery(triggers=True, limit=2))
        rest = await store.list(SessionQuery(triggers=True, limit=2, cursor=found.cursor))
        expect([row.uid for row in (*found.rows, *rest.rows)] == ["s3", "s2", "s1"], "pages fit together")
        expect(list(await store.runnable(["clerk"], now=START + 61)) == ["s1", "s3"], "their time wakes them")
        await store.append(batch("s2", 1, 2, summary=IDLE))
        await store.append(batch("s0", 1, 2, summary=watching))
        await store.delete("s3")
        expect(await _listed(store, SessionQuery(triggers=True)) == [1, 0], "what is gone is not found")
        expect(await _listed(store, SessionQuery(watches=True)) == [0], "nor what watches no more")


async def _listed(store: Store, query: SessionQuery) -> list[int]:
    page = await store.list(query)
    return [int(row.metadata["number"]) for row in page.rows]


async def check_hostile_names(make_store: MakeStore, beside: Beside = None) -> None:
    """Uids, ids, tenants, metadata, agents and digests are any text at all."""
    names = [
        "",
        "'",
        '"; DROP TABLE sessions; --',
        "\x00",
        "a\x00b",
        "é\u202e\U0001f600",
        "%_*?[",
        "x" * 5000,
    ]
    async with make_store() as store:
        for name in names:
            await store.append(
                first(name, name, tenant=name, metadata={name: name}, summary=Summary(name, "running", True))
            )
            await store.save_artifact(name, name, name.encode())
        for name in names:
            row = await store.find(name, name)
            kept = row and (row.uid, row.tenant, row.id, row.agent, row.metadata)
            expect(kept == (name, name, name, name, {name: name}), f"{name[:20]!r} is kept as it is")
            expect(row == await store.get(name), "both ways lead to the same row")
            expect(data_of(await store.read(name)) == [name], "and to its records")
            found = await store.list(SessionQuery(tenant=name, agent=name, metadata={name: name}))
            expect([row.uid for row in found.rows] == [name], f"{name[:20]!r} is found by its own name only")
            expect(list(await store.runnable([name], now=START)) == [name], "agents are compared exactly")
            expect(await store.load_artifact(name, name) == name.encode(), "artifacts have any name")
        for name in names:
            await store.delete(name)
            expect(await store.get(name) is None, "and can be deleted by it")


async def check_delete(make_store: MakeStore, beside: Beside = None) -> None:
    """A deleted session is gone with all that was its own, and its names are free again."""
    async with make_store() as store:
        await store.append(first("s", 1, 2, tenant="t", metadata={"k": "v"}, summary=WAITING))
        await store.append(first("neighbour", 1, tenant="t", metadata={"k": "v"}))
        await store.join("a")
        await store.save_artifact("s", "d", b"data")
        claim = await store.claim("s", "a")
        await store.append_draft("s", b"draft", epoch=claim.epoch if claim else 0)
        await refused(Refused, store.delete("s"), "a driven session is not deleted")
        expect(len(await store.read("s")) == 2, "and loses nothing by the attempt")
        await store.leave("a")
        await store.delete("s")
        expect(await store.get("s") is None and await store.find("t", "s") is None, "it is not found")
        found = await store.list(SessionQuery(metadata={"k": "v"}))
        expect([row.uid for row in found.rows] == ["neighbour"], "it is not listed")
        expect(list(await store.runnable(["clerk"], now=START + 99)) == [], "it is not offered")
        for gone in (
            store.read("s"),
            store.append(batch("s", 2, 3)),
            store.delete("s"),
            store.load_artifact("s", "d"),
            store.save_artifact("s", "d", b""),
            store.read_draft("s"),
            store.append_draft("s", b"", epoch=1),
        ):
            await refused(NotFound, gone, "nothing can be done with it")
        await store.append(first("s", "new", tenant="t"))
        expect(data_of(await store.read("s")) == ["new"], "its uid and id may be given again")
        expect(await store.read_draft("s") == (), "nothing of it comes back")
        await refused(NotFound, store.load_artifact("s", "d"), "its artifacts do not come back")
        expect(data_of(await store.read("neighbour")) == [1], "its neighbours are untouched")


async def check_forks(make_store: MakeStore, beside: Beside = None) -> None:
    """A fork shares its parent's past and nothing of its future, and outlives it."""
    async with make_store() as store:
        await store.append(first("root", 1, 2, 3, 4))
        await store.save_artifact("root", "d", b"shared")
        await store.append(first("fork", "f", base=("root", 2)))
        await store.append(first("leaf", "l", base=("fork", 3)))
        await store.append(first("twig", "t", base=("leaf", 1)))
        await store.append(first("bare", "b", base=("root", 0)))
        await store.append(batch("root", 4, 5))
        await store.append(batch("fork", 3, "g"))
        logs = {
            "root": [1, 2, 3, 4, 5],
            "fork": [1, 2, "f", "g"],
            "leaf": [1, 2, "f", "l"],
            "twig": [1, "t"],
            "bare": ["b"],
        }
        await _expect_logs(store, logs)
        expect(data_of(await store.read("leaf", after=1, limit=2)) == [2, "f"], "pages cross the fork")
        expect(data_of(await store.read("leaf", after=3)) == ["l"], "and may start behind it")
        await refused(Conflict, store.append(first("far", 1, base=("root", 6))), "no fork of what is not there")
        await refused(NotFound, store.append(first("lost", 1, base=("nobody", 0))), "no fork of nobody")
        expect(await store.load_artifact("twig", "d") == b"shared", "a fork reads its bases' artifacts")
        await store.delete("root")
        await store.delete("leaf")
        await refused(NotFound, store.append(first("late", 1, base=("root", 1))), "no fork of what was deleted")
        await refused(Conflict, store.append(first("root", 1)), "a uid stays taken while forks need it")
        del logs["root"], logs["leaf"]
        await _expect_logs(store, logs)
        again = first("again", "new")
        opening = again.opening and replace(again.opening, id="root")
        await store.append(replace(again, opening=opening))
        expect((await store.find("", "root")) is not None, "the id of a deleted parent may be given again")
        expect(await store.load_artifact("twig", "d") == b"shared", "a fork keeps its bases' artifacts")
        for uid in ("twig", "fork", "bare", "again"):
            await store.delete(uid)
        expect((await store.list(SessionQuery())).rows == (), "nothing is left")
        for uid in ("root", "leaf", "fork"):
            await store.append(first(uid, "new"))
            expect(data_of(await store.read(uid)) == ["new"], "the last fork takes its bases with it")


async def _expect_logs(store: Store, logs: Mapping[str, Sequence[object]]) -> None:
    for uid, log in logs.items():
        records = await store.read(uid)
        expect(data_of(records) == log, f"{uid} has its own past and future ({data_of(records)})")
        expect([record.seq for record in records] == list(range(1, len(log) + 1)), "seq has no gap in a fork")
        expect({record.session for record in records} == {uid}, "a fork's records are all its own")
    listed = {row.uid for row in (await store.list(SessionQuery())).rows}
    expect(listed == set(logs), "exactly the living are listed")


async def check_artifacts(make_store: MakeStore, beside: Beside = None) -> None:
    """Large payloads by digest, per session; saving one again changes nothing."""
    async with make_store() as store:
        await store.append(first("s", 1))
        await store.append(first("t", 1))
        big = bytes(range(256)) * 4096 * 10
        await store.save_artifact("s", "big", big)
        await store.save_artifact("s", "empty", b"")
        await store.save_artifact("s", "empty", b"not any more")
        expect(await store.load_artifact("s", "big") == big, "what was saved is loaded")
        expect(await store.load_artifact("s", "empty") == b"", "the first saving counts")
        await refused(NotFound, store.load_artifact("s", "other"), "an unknown artifact is not found")
        await refused(NotFound, store.load_artifact("t", "big"), "artifacts are a session's own")
        await refused(NotFound, store.save_artifact("nobody", "d", b""), "an unknown session has none")


async def check_drafts(make_store: MakeStore, beside: Beside = None) -> None:
    """What a model has said so far: kept in order, seen by the next driver, dropped with the answer."""
    async with make_store() as store:
        await store.append(first("s", 1))
        await store.append(first("t", 1))
        await store.join("a")
        mine, other = await store.claim("s", "a"), await store.claim("t", "a")
        expect(mine is not None and other is not None, "free sessions can be claimed")
        epoch = mine.epoch if mine else 0
        for chunk in (b"one", b"", b"\x00two"):
            await store.append_draft("s", chunk, epoch=epoch)
        await store.append_draft("t", b"other", epoch=other.epoch if other else 0)
        expect(tuple(await store.read_draft("s")) == (b"one", b"", b"\x00two"), "chunks are kept in order")
        await store.append(batch("s", 1, 2))
        await store.claim("s", "a")
        expect(len(await store.read_draft("s")) == 3, "appends and claims leave the draft alone")
        await store.append(replace(batch("s", 2, 3), drops_draft=True))
        expect(tuple(await store.read_draft("s")) == (), "an answer drops the draft")
        expect(tuple(await store.read_draft("t")) == (b"other",), "and no other's")
        await refused(NotFound, store.append_draft("nobody", b"x", epoch=0), "an unknown session has no draft")
        await refused(NotFound, store.read_draft("nobody"), "nor one to read")

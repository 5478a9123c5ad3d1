"""Decisions: suspended calls as durable records, decided once, by whoever is first."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from perdure import Agent, Conflict, Decision, NotFound, Pending, Policy, Refused, Runtime, Session, UsageError, tool
from perdure.events import (
    CallChecked,
    CallDecided,
    CallEnded,
    CallStarted,
    CallSuspended,
    ModelResponded,
    RunEnded,
    RunResumed,
)
from perdure.ports import Store
from perdure.testing import ManualClock, ScriptedModel, call
from tests.runtime.scenes import crashing, events, kinds, seen, soon, told, turned, until

ledger: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ledger.clear()


@tool(ask=True)
async def mail(to: str, copies: Literal[1, 2] = 1) -> str:
    """Send mail."""
    ledger.append((to, copies))
    return f"sent to {to}"


@tool(effect="read")
async def look() -> str:
    ledger.append("look")
    return "fine"


def asker(*answers: Any, **options: Any) -> Agent[str]:
    options = {"tools": [mail, look], **options}
    return Agent(name="asker", model=ScriptedModel(list(answers)), **options)


async def waiting(session: Session[Any], text: str = "go", **options: Any) -> tuple[Pending, ...]:
    result = await soon(session.run(text, **options))
    assert result.reason == "waiting"
    return result.pending


async def finish(session: Session[Any]) -> Any:
    return await soon(session.resume()) if session.state.run else None


# The five answers


async def test_a_suspended_call_is_shown_as_it_is(store: str | Store) -> None:
    agent = asker([call("mail", to="bob")], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session)
        assert (pending.kind, pending.session, pending.call, pending.tool) == ("approval", "x", 1, "mail")
        assert pending.arguments == {"to": "bob"}
        assert pending.prompt == "The tool 'mail' asks for approval."
        assert pending.expires_at is None
        assert await session.pending() == (pending,)
        assert await runtime.pending() == [pending]
        assert ledger == []
    async with Runtime(store, agents=[agent]) as runtime:
        assert await runtime.pending() == [pending]
        assert await (await runtime.session("x")).pending() == (pending,)


async def test_an_approved_call_is_run(store: str | Store) -> None:
    agent = asker([call("mail", to="bob")], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go", key="k")
        (pending,) = (await soon(_result(run))).pending
        await session.decide(pending.id, "approve", by="ops", reason="looks fine")
        result = await soon(_result(run))
        assert (result.run, result.output, result.pending) == (1, "Done.", ())
        assert ledger == [("bob", 1)]
        (decided,) = await events(session, CallDecided)
        assert (decided.decision, decided.by, decided.reason) == ("approve", "ops", "looks fine")
        assert await told(session) == [("mail", "ok", "sent to bob")]
        assert await runtime.pending() == []


async def _result(run: Any) -> Any:
    return await run


async def test_a_denied_call_is_told_to_the_model_with_the_reason(store: str | Store) -> None:
    agent = asker([call("mail", to="bob")], "I see.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session)
        await session.decide(pending.id, "deny", by="ops", reason="not on Sundays")
        assert (await finish(session)).output == "I see.", "a denial does not end the run"
        assert await told(session) == [
            ("mail", "denied", "The call was denied by ops: not on Sundays. It was not carried out.")
        ]
        assert ledger == []
        assert await events(session, CallStarted) == []


async def test_an_edited_call_is_run_as_edited_and_the_model_is_told(store: str | Store) -> None:
    agent = asker([call("mail", to="bob")], "I see.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session)
        await session.decide(pending.id, "edit", arguments={"to": "eve", "copies": 2})
        assert (await finish(session)).output == "I see."
        assert ledger == [("eve", 2)]
        ((_, outcome, text),) = await told(session)
        assert outcome == "ok"
        assert text == 'A person changed the arguments to {"copies":2,"to":"eve"}. sent to eve'
        checks = await events(session, CallChecked)
        assert [check.verdict for check in checks] == ["ask", "allow"]
        assert checks[0].digest != checks[1].digest, "the approval is bound to what was approved"


async def test_an_edit_that_does_not_fit_is_refused(store: str | Store) -> None:
    agent = asker([call("mail", to="bob")], "I see.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session)
        for wrong in ({"to": "eve", "copies": 3}, {"copies": 1}, {"to": "eve", "copies": "x"}, {"to": "eve", "bcc": 1}):
            with pytest.raises(Refused, match="The arguments do not fit mail"):
                await session.decide(pending.id, "edit", arguments=wrong)
        assert await session.pending() == (pending,), "a refused edit decides nothing"
        await session.decide(pending.id, "edit", arguments={"to": "eve"})
        assert (await finish(session)).output == "I see."
        assert ledger == [("eve", 1)]


async def test_an_edit_does_not_pass_a_deny(store: str | Store) -> None:
    def to_eve(view: Any) -> bool:
        return view.arguments["to"] == "eve"

    agent = asker([call("mail", to="bob")], "I see.", policy=Policy(deny=[to_eve]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session)
        await session.decide(pending.id, "edit", arguments={"to": "eve"})
        assert (await finish(session)).output == "I see."
        assert [outcome for _, outcome, _ in await told(session)] == ["denied"]
        assert ledger == []


async def test_a_failed_edited_call_tells_the_model_of_the_edit_too(memory: Store) -> None:
    @tool(ask=True)
    async def fail(at: str) -> str:
        raise RuntimeError(f"{at} is closed")

    agent = asker([call("fail", at="a")], "I see.", tools=[fail])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        (pending,) = await waiting(session)
        await session.decide(pending.id, "edit", arguments={"at": "b"})
        await finish(session)
        ((_, _, text),) = await told(session)
        assert "changed the arguments" in text
        assert "b is closed" in text


# Calls in doubt


@tool
async def pay(cents: int) -> str:
    """Pay."""
    ledger.append(cents)
    if len(ledger) == 1:
        await asyncio.Event().wait()
    return f"paid {cents}"


async def in_doubt(store: str | Store, agent: Agent[str]) -> None:
    """Leaves a session whose once call was under way when the process died."""
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await until(lambda: ledger)
    assert ledger == [5]


@pytest.mark.parametrize(
    ("decision", "options", "outcome", "text", "payments"),
    [
        ("answer", {"value": "paid 5, says the bank"}, "ok", "paid 5, says the bank", [5]),
        ("answer", {"value": {"paid": 5}}, "ok", '{"paid":5}', [5]),
        ("deny", {"reason": "no such payment"}, "error", "The call failed, as stated by ops: no such payment.", [5]),
        ("retry", {}, "ok", "paid 5", [5, 5]),
    ],
)
async def test_a_call_in_doubt_is_settled_by_a_person(
    store: str | Store, decision: Any, options: dict[str, Any], outcome: str, text: str, payments: list[int]
) -> None:
    agent = asker([call("pay", cents=5)], "Done.", tools=[pay])
    await in_doubt(store, agent)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session, key="k")
        assert (pending.kind, pending.tool, pending.arguments) == ("unknown", "pay", {"cents": 5})
        assert "nobody knows whether it took effect" in pending.prompt
        assert ledger == [5], "never started twice without a decision"
        await session.decide(pending.id, decision, by="ops", **options)
        assert (await finish(session)).output == "Done."
        assert await told(session) == [("pay", outcome, text)]
        assert ledger == payments
        assert len(await events(session, RunResumed)) == 1
        assert [start.attempt for start in await events(session, CallStarted)] == list(range(1, len(payments) + 1))


async def test_a_call_in_doubt_is_told_to_the_model_if_the_tool_says_so(store: str | Store) -> None:
    @tool(on_unknown="tell")
    async def post() -> str:
        ledger.append("post")
        await asyncio.Event().wait()
        return "never"

    agent = asker([call("post")], "I see.", tools=[post])
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await until(lambda: ledger)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "I see."
        ((_, outcome, text),) = await told(session)
        assert outcome == "unknown"
        assert "not known whether this call took effect" in text
        (ended,) = await events(session, CallEnded)
        assert ended.in_doubt


async def test_wrong_kinds_of_answers_are_refused(store: str | Store) -> None:
    agent = asker([call("mail", to="bob")], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session)
        before = await kinds(session)
        with pytest.raises(Refused, match="approval takes approve or deny or edit or answer, not retry"):
            await session.decide(pending.id, "retry")
        with pytest.raises(UsageError, match=r"An edit needs arguments="):
            await session.decide(pending.id, "edit")
        assert await kinds(session) == before
        assert await session.pending() == (pending,)


async def test_a_call_in_doubt_takes_no_approval(store: str | Store) -> None:
    agent = asker([call("pay", cents=5)], "Done.", tools=[pay])
    await in_doubt(store, agent)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session, key="k")
        for decision in ("approve", "edit"):
            with pytest.raises(Refused, match="unknown takes answer or deny or retry"):
                await session.decide(pending.id, decision, arguments={})


# Once, by whoever is first


async def test_it_is_decided_once(store: str | Store) -> None:
    agent = asker([call("mail", to="bob"), call("mail", to="eve")], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        first, second = await waiting(session)
        await session.decide(first.id, "deny", by="ann")
        with pytest.raises(Conflict, match="already decided by ann: deny"):
            await session.decide(first.id, "approve", by="ben")
        await session.decide(second.id, "approve")
        assert (await finish(session)).output == "Done."
        for pending in (first, second):
            with pytest.raises(Conflict):
                await session.decide(pending.id, "approve")
        assert ledger == [("eve", 1)]


async def test_of_many_deciders_one_is_first(store: str | Store) -> None:
    agent = asker([call("mail", to="bob")], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session)
        answers = await asyncio.gather(
            *(session.decide(pending.id, "approve", by=str(number)) for number in range(10)), return_exceptions=True
        )
        assert [answer for answer in answers if answer is None] == [None]
        assert all(isinstance(answer, Conflict) for answer in answers if answer is not None)
        await finish(session)
        assert len(await events(session, CallDecided)) == 1
        assert ledger == [("bob", 1)]


@pytest.mark.parametrize(
    "shape", ["nonsense", "", "{uid}-2-1", "{uid}-1", "{uid}-x-y", "{uid}-1-" + "9" * 5000, "0-1-1"]
)
async def test_unknown_ids_are_not_found(memory: Store, shape: str) -> None:
    agent = asker([call("mail", to="bob")], "Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await waiting(session)
        before = await kinds(session)
        with pytest.raises(NotFound, match="no pending decision"):
            await session.decide(shape.replace("{uid}", session.uid), "approve")
        assert await kinds(session) == before


# Several at once


async def test_some_decided_calls_go_on_while_others_wait(store: str | Store) -> None:
    agent = asker([call("mail", to="a"), call("look"), call("mail", to="b"), call("mail", to="c")], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        a, b, c = await waiting(session)
        assert [pending.call for pending in (a, b, c)] == [1, 3, 4]
        assert ledger == ["look"], "a suspended call does not hold its siblings"
        await session.decide(b.id, "approve")
        await seen(session, CallEnded, call=3)
        assert ledger == ["look", ("b", 1)]
        assert [pending.id for pending in await session.pending()] == [a.id, c.id]
        assert len(await events(session, ModelResponded)) == 1, "no new turn before all are settled"
        await session.decide(c.id, "deny")
        result = await soon(session.resume())
        assert [pending.id for pending in result.pending] == [a.id]
        await session.decide(a.id, "approve")
        assert (await finish(session)).output == "Done."
        assert [(name, outcome) for name, outcome, _ in await told(session)] == [
            ("mail", "ok"),
            ("look", "ok"),
            ("mail", "ok"),
            ("mail", "denied"),
        ]


# Nobody there


async def test_a_decision_is_kept_until_somebody_drives(store: str | Store) -> None:
    agent = asker([call("mail", to="bob")], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        (pending,) = await waiting(await runtime.open(agent, id="x"), key="k")
    async with Runtime(store, engine=None) as runtime:
        session = await runtime.session("x")
        await session.decide(pending.id, "approve", by="night shift")
        assert [row.status async for row in runtime.sessions()] == ["running"]
    assert ledger == []
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
        assert ledger == [("bob", 1)]
        assert len(await events(session, RunResumed)) == 0, "nothing was under way"


async def test_a_decision_wakes_the_runtime_that_waits(store: str | Store) -> None:
    agent = asker([call("mail", to="bob")], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        (pending,) = (await soon(_result(run))).pending
        other = await runtime.session("x")
        await other.decide(pending.id, "approve")
        assert (await soon(_result(run))).output == "Done.", "awaited again after the decision"


async def test_a_runtime_decides_for_any_session_by_the_id_alone(store: str | Store) -> None:
    agent = asker([call("mail", to="bob")], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x", tenant="acme")
        await waiting(session)
        (pending,) = await runtime.pending()
        decided = await runtime.decide(pending.id, "approve", by="ops")
        assert decided.uid == session.uid
        assert (await finish(session)).output == "Done."
        assert ledger == [("bob", 1)]


# Remembered approvals


@pytest.mark.parametrize(
    ("remember", "asked_again"),
    [
        (True, ["eve"]),
        ("exact", ["eve"]),
        ("tool", []),
        ("ma*", []),
        ("other*", ["bob", "eve"]),
        (False, ["bob", "eve"]),
    ],
)
async def test_an_approval_may_be_remembered(store: str | Store, remember: Any, asked_again: list[str]) -> None:
    agent = asker([call("mail", to="bob")], "One.", [call("mail", to="bob"), call("mail", to="eve")], "Two.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session)
        await session.decide(pending.id, "approve", remember=remember)
        await finish(session)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("again"))
        assert [pending.arguments["to"] for pending in result.pending] == asked_again


async def test_a_remembered_approval_never_satisfies_a_deny(store: str | Store) -> None:
    denied: list[bool] = []

    def closed(_: object) -> bool:
        return bool(denied)

    agent = asker([call("mail", to="bob")], "One.", [call("mail", to="bob")], "Two.", policy=Policy(deny=[closed]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session)
        await session.decide(pending.id, "approve", remember="tool")
        await finish(session)
        denied.append(True)
        assert (await soon(session.run("again"))).output == "Two."
        assert [outcome for _, outcome, _ in await told(session)] == ["ok", "denied"]
        assert ledger == [("bob", 1)]


async def test_a_denial_is_never_remembered(memory: Store) -> None:
    agent = asker([call("mail", to="bob")], "One.", [call("mail", to="bob")], "Two.")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        (pending,) = await waiting(session)
        await session.decide(pending.id, "deny", remember="tool")
        await finish(session)
        assert len(await waiting(session, "again")) == 1


# Expiry


@tool(ask=True, expires=60)
async def invite(to: str) -> str:
    ledger.append(to)
    return "invited"


async def test_a_call_expires_when_nobody_decides(store: str | Store) -> None:
    clock = ManualClock()
    agent = asker([call("invite", to="bob")], "Too late.", tools=[invite])
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session)
        assert pending.expires_at == clock.now() + 60
        await clock.advance(59)
        assert await session.pending() == (pending,)
        await turned(clock, lambda: session.state.run is None)
        assert [outcome for _, outcome, _ in await told(session)] == ["denied"]
        (decided,) = await events(session, CallDecided)
        assert (decided.decision, decided.by) == ("deny", "expiry")
        with pytest.raises(Conflict):
            await session.decide(pending.id, "approve")
        assert ledger == []


async def test_a_call_expires_while_a_sibling_runs(memory: Store) -> None:
    clock = ManualClock()
    release = asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        await release.wait()
        return "waited"

    agent = asker([call("invite", to="bob"), call("wait")], "Done.", tools=[invite, wait])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await seen(session, CallSuspended)
        await clock.advance(61)
        await seen(session, CallDecided, by="expiry")
        release.set()
        assert (await soon(_result(run))).output == "Done."


async def test_a_call_that_expired_while_nobody_was_there_is_denied_by_the_next_runtime(store: str | Store) -> None:
    clock = ManualClock()
    agent = asker([call("invite", to="bob")], "Too late.", tools=[invite])
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        await waiting(await runtime.open(agent, id="x"), key="k")
    clock.skip(3600)
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.session("x")
        await seen(session, RunEnded)
        assert (await session.run("go", key="k")).output == "Too late."


async def test_a_decision_in_time_beats_the_expiry(memory: Store) -> None:
    clock = ManualClock()
    agent = asker([call("invite", to="bob")], "Done.", tools=[invite])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        (pending,) = await waiting(session)
        await clock.advance(30)
        await session.decide(pending.id, "approve")
        await finish(session)
        await clock.advance(120)
        assert ledger == ["bob"]
        assert len(await events(session, CallDecided)) == 1


# In place


async def test_on_pending_answers_in_place(store: str | Store) -> None:
    asked: list[Pending] = []

    def ask(pending: Pending) -> Any:
        asked.append(pending)
        return "approve" if pending.arguments["to"] == "a" else Decision("deny", by="me", reason="no")

    agent = asker([call("mail", to="a"), call("mail", to="b")], [call("mail", to="a")], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go", on_pending=ask))
        assert result.output == "Done."
        assert [pending.arguments["to"] for pending in asked] == ["a", "b", "a"]
        assert [outcome for _, outcome, _ in await told(session)] == ["ok", "denied", "ok"]


async def test_on_pending_may_be_async_and_may_leave_it(store: str | Store) -> None:
    async def ask(pending: Pending) -> Any:
        await asyncio.sleep(0)
        return Decision("edit", arguments={"to": "z"}) if pending.arguments["to"] == "a" else None

    agent = asker([call("mail", to="a"), call("mail", to="b")], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go", on_pending=ask))
        assert result.reason == "waiting"
        assert [pending.arguments["to"] for pending in result.pending] == ["b"]
        assert ledger == [("z", 1)]
        result = await soon(session.resume(on_pending=lambda _: "approve"))
        assert result.output == "Done."


async def test_on_pending_yields_to_whoever_was_first(memory: Store) -> None:
    agent = asker([call("mail", to="a")], "Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)

        async def ask(pending: Pending) -> Any:
            await session.decide(pending.id, "deny", by="somebody else")
            return "approve"

        assert (await soon(session.run("go", on_pending=ask))).output == "Done."
        assert ledger == []


async def test_an_error_in_on_pending_is_the_callers_and_the_run_waits(memory: Store) -> None:
    def ask(_: Pending) -> Any:
        raise ZeroDivisionError

    agent = asker([call("mail", to="a")], "Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        with pytest.raises(ZeroDivisionError):
            await session.run("go", on_pending=ask)
        assert len(await session.pending()) == 1

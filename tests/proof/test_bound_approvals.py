"""An approval is for the bytes that were shown: whatever is changed between the asking and the start is refused."""

from __future__ import annotations

import string
from random import Random
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from perdure import Agent, Conflict, NotFound, Policy, Runtime, UsageError, tool
from perdure.core.codec import encode_event, encode_json
from perdure.core.events import Event
from perdure.core.fold import fold
from perdure.core.messages import ToolCall
from perdure.core.views import summarise
from perdure.events import AgentPinned, CallChecked, CallEnded, CallStarted, ModelResponded, SessionOpened
from perdure.ports import Batch, Entry, Opening
from perdure.stores.memory import MemoryStore
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import check_store, crashing, events, soon

ARGUMENTS = {"to": "ann", "cents": 500, "note": "rent"}
SIZES = {
    "arguments": 35,
    "description": 30,
    "parameters": 35,
    "effect": 2,
    "tool": 28,
    "policy": 30,
    "requester": 25,
    "session": 15,
}


class Plan:
    """Everything that an approval is for, and what is done to it meanwhile."""

    def __init__(self) -> None:
        self.description = "Pay somebody."
        self.effect: Any = "once"
        self.types: dict[str, Any] = {"to": str, "cents": int, "note": str}
        self.defaults: dict[str, Any] = {}
        self.rules: dict[str, list[str]] = {"allow": [], "ask": ["pay"], "deny": ["shred"]}
        self.options: dict[str, Any] = {}
        self.arguments: dict[str, Any] = dict(ARGUMENTS)
        self.opened: dict[str, str] = {}
        self.agent_name = "clerk"

    def agent(self, ran: list[Any]) -> Agent[str]:
        async def pay(**given: Any) -> str:
            ran.append(given)
            return "paid"

        described = _with_signature(pay, self.types, self.defaults)
        made = tool(name="pay", description=self.description, effect=self.effect, **self.options)(described)
        model = ScriptedModel([[call("pay", **ARGUMENTS)], "Done."])
        return Agent(name=self.agent_name, model=model, tools=[made], policy=Policy(**self.rules))


def _with_signature(function: Any, types: dict[str, Any], defaults: dict[str, Any]) -> Any:
    """The function with parameters of its own, as a programmer would have written them."""
    names = sorted(types, key=lambda name: name in defaults)
    written = ", ".join(f"{name}=defaults[{name!r}]" if name in defaults else name for name in names)
    passed = ", ".join(f"{name}={name}" for name in names)
    space: dict[str, Any] = {"function": function, "defaults": defaults}
    exec(f"async def pay({written}): return await function({passed})", space)
    space["pay"].__annotations__ = {**types, "return": str}
    return space["pay"]


def word(chance: Random) -> str:
    return "".join(chance.choices(string.ascii_lowercase + "é ß0", k=chance.randint(1, 12))).strip() or "x"


def mutate(family: str, seed: int) -> Plan:
    """A plan that differs in one thing."""
    chance, plan = Random(f"{family} {seed}"), Plan()
    match family:
        case "arguments":
            name = chance.choice(list(ARGUMENTS))
            plan.arguments[name] = 500 + chance.choice((-1, 1)) * chance.randint(1, 10**9)
            if name != "cents":
                plan.arguments[name] = (
                    ARGUMENTS[name] + chance.choice(("", " ", word(chance))) + chance.choice("x.\u200b")
                )
        case "description":
            at = chance.randint(0, len(plan.description))
            plan.description = plan.description[:at] + chance.choice((" ", ".", word(chance))) + plan.description[at:]
        case "parameters":
            name = word(chance).replace(" ", "_").replace("0", "_") + "_"
            match seed % 4:
                case 0:
                    plan.types[name], plan.defaults[name] = chance.choice((str, int, bool)), None
                    plan.types[name] = plan.types[name] | None
                case 1:
                    plan.defaults[chance.choice(("to", "note"))] = word(chance)
                case 2:
                    plan.types["cents"] = chance.choice((float, int | None, int | str, Literal[500]))
                case _:
                    plan.types[chance.choice(("to", "note"))] = chance.choice((str | None, str | int, Any))
        case "effect":
            plan.effect = chance.choice(("idempotent", "read"))
        case "tool":
            option, value = chance.choice(
                [("sequential", True), ("on_unknown", "tell"), ("timeout", chance.randint(1, 900)), ("ask", True)]
            )
            plan.options[option] = value
            if chance.random() < 0.3:
                plan.effect, plan.options["retries"] = "idempotent", chance.randint(1, 9)
        case "policy":
            kind = chance.choice(("allow", "ask", "deny"))
            rules = plan.rules[kind]
            rules.insert(chance.randint(0, len(rules)), word(chance).replace(" ", "_") + chance.choice(("", "*")) + "~")
        case "requester":
            plan.opened = {chance.choice(("tenant", "agent")): word(chance).replace(" ", "-")}
            plan.agent_name = plan.opened.get("agent", "clerk")
        case _:
            plan.opened = {"uid": f"{chance.getrandbits(80):020x}"}
    return plan


def mutations() -> list[tuple[str, int]]:
    """Families and seeds, so many of each that no two of them change the same thing in the same way."""
    found: list[tuple[str, int]] = []
    for family, size in SIZES.items():
        known: set[str] = set()
        seed = 0
        while len(known) < size:
            if (shown := repr(vars(mutate(family, seed)))) not in known:
                known.add(shown)
                found.append((family, seed))
            seed += 1
    return found


MUTATIONS = mutations()


async def asked_and_approved(store: MemoryStore, ran: list[Any]) -> str:
    """Somebody is asked by one process and approves in another; the uid of the session."""
    before = Plan().agent(ran)
    async with crashing(store, agents=[before]) as runtime:
        session = await runtime.open(before, id="x")
        (pending,) = (await soon(session.run("go", key="k"))).pending
    async with Runtime(store, engine=None) as runtime:
        await (await runtime.session("x")).decide(pending.id, "approve", by="ann")
    return session.uid


async def tampered(store: MemoryStore, uid: str, plan: Plan) -> MemoryStore:
    """The same log in another store, with other words in it: what nobody can do who has no hand in the store."""
    await store.open()
    records = await store.read(uid)
    await store.close()
    changed: list[Event] = []
    for record in records:
        event = record.event
        if isinstance(event, SessionOpened):
            event = replace(event, **plan.opened)
        if isinstance(event, AgentPinned):
            event = replace(event, spec=replace(event.spec, name=plan.agent_name))
        if isinstance(event, ModelResponded) and plan.arguments != ARGUMENTS:
            (asked,) = event.message.calls
            assert isinstance(asked, ToolCall)
            written = replace(asked, arguments=encode_json(plan.arguments).decode())
            event = replace(event, message=replace(event.message, parts=(written,)))
        changed.append(event)
    state = fold(changed)
    other = MemoryStore()
    await other.open()
    entries = tuple(
        Entry(record.at, record.run, encode_event(event)) for record, event in zip(records, changed, strict=True)
    )
    await other.append(Batch(state.uid, 0, entries, summarise(state), opening=Opening(state.tenant, state.id, {})))
    await other.close()
    return other


@pytest.mark.parametrize(("family", "seed"), MUTATIONS)
async def test_what_was_changed_after_the_asking_is_asked_again(family: str, seed: int) -> None:
    """Two hundred mutations, no two alike."""
    plan, ran, store = mutate(family, seed), list[Any](), MemoryStore()
    uid = await asked_and_approved(store, ran)
    if plan.opened or plan.arguments != ARGUMENTS:
        store = await tampered(store, uid, plan)
    changed = plan.agent(ran)
    async with Runtime(store, agents=[changed]) as runtime:
        session = await runtime.open(changed, id="x", tenant=plan.opened.get("tenant", ""))
        result = await soon(session.run("go", key="k"))
        assert ran == [], "the effect never happens"
        assert await events(session, CallStarted) == []
        verdicts = [checked.verdict for checked in await events(session, CallChecked)]
        assert verdicts == ["ask", "stale", "ask"]
        (again,) = result.pending
        assert again.arguments == plan.arguments, "what would run is what is shown now"
        with pytest.raises(Conflict):
            await session.decide(f"{session.uid}-1-1", "approve")
        await session.decide(again.id, "deny")
        assert (await soon(session.resume())).output == "Done."
        assert [end.outcome for end in await events(session, CallEnded)] == ["denied"]
    assert ran == []
    await check_store(store)


def test_there_are_two_hundred_mutations() -> None:
    plans = {repr(vars(mutate(family, seed))) for family, seed in MUTATIONS}
    assert len(plans) == 200
    assert repr(vars(Plan())) not in plans


@pytest.mark.parametrize("seed", range(5))
async def test_what_is_the_same_runs(seed: int) -> None:
    """The control, also with the same arguments written in another way."""
    ran, store = list[Any](), MemoryStore()
    uid = await asked_and_approved(store, ran)
    plan = Plan()
    if seed:
        order = list(ARGUMENTS)
        Random(seed).shuffle(order)
        plan.arguments = {name: ARGUMENTS[name] for name in order}
        store = await tampered(store, uid, plan)
    same = plan.agent(ran)
    async with Runtime(store, agents=[same]) as runtime:
        session = await runtime.open(same, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
    assert ran == [ARGUMENTS]
    await check_store(store)


async def test_after_the_new_asking_the_new_form_runs() -> None:
    ran, store = list[Any](), MemoryStore()
    await asked_and_approved(store, ran)
    changed = mutate("description", 1).agent(ran)
    async with Runtime(store, agents=[changed]) as runtime:
        session = await runtime.open(changed, id="x")
        (again,) = (await soon(session.run("go", key="k"))).pending
        await session.decide(again.id, "approve")
        assert (await soon(session.resume())).output == "Done."
    assert ran == [ARGUMENTS]


@pytest.mark.parametrize("seed", range(5))
async def test_a_forbidding_rule_beats_the_approval(seed: int) -> None:
    ran, store = list[Any](), MemoryStore()
    await asked_and_approved(store, ran)
    plan = Plan()
    plan.rules["deny"] = [Random(seed).choice(("pay", "p*", "*", "pa?"))]
    agent = plan.agent(ran)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
        assert [checked.verdict for checked in await events(session, CallChecked)] == ["ask", "stale", "deny"]
    assert ran == []


async def test_nobody_else_uses_an_approval() -> None:
    """Another agent, another tenant, a fork, a second decision: none of them comes to the effect."""
    ran, store = list[Any](), MemoryStore()
    await asked_and_approved(store, ran)
    other = Plan()
    other.agent_name = "robber"
    robber = other.agent(ran)
    async with Runtime(store, agents=[robber]) as runtime:
        with pytest.raises(Conflict, match="belongs to the agent"):
            await runtime.open(robber, id="x")
        with pytest.raises(NotFound):
            await runtime.session("x", tenant="other")
        session = await runtime.session("x")
        with pytest.raises(UsageError, match="not known here"):
            await session.run("go", key="k")
        for decision, more in (("edit", {"arguments": {**ARGUMENTS, "cents": 9}}), ("approve", {}), ("deny", {})):
            with pytest.raises(Conflict, match="already decided by ann"):
                await session.decide(f"{session.uid}-1-1", decision, **more)  # type: ignore[arg-type]
    clerk = Plan().agent(ran)
    async with Runtime(store, engine=None) as runtime:
        await (await runtime.session("x")).fork(id="fork")
        await (await runtime.session("x")).cancel()
    async with Runtime(store, agents=[clerk]) as runtime:
        for name in ("x", "fork"):
            await soon((await runtime.open(clerk, id=name)).run("and now?"))
    assert ran == []
    await check_store(store)

"""Hooks: each phase is called, may do what it may, and leaves the run with its defined outcome when it fails."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Agent, Limits, ModelSettings, Policy, Runtime, Session, ToolError, UsageError, tool
from perdure.core.actions import RunTool
from perdure.core.commands import ChangeState
from perdure.core.events import HistoryCompacted, InputChanged, StateChanged
from perdure.core.messages import Text, Usage
from perdure.core.specs import Window
from perdure.events import CallChecked, ModelCalled, ModelResponded, Noted, RunEnded, RunStarted
from perdure.plugins import Block, Emit, Hooks, Overrides, Result, Schedule, StateKey, Stop
from perdure.ports import Batch, ModelResponse, Store
from perdure.runtime.hooks import PHASES
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel, call
from tests.runtime.scenes import check_store, events, said, soon, told, turned, until

FIELDS = [field.name for field in dataclasses.fields(Hooks) if field.name != "timeout"]
SEEN = StateKey("seen", int, default=0, reducer=lambda one, other: one + other)


@tool(effect="once")
async def act(what: str = "it") -> str:
    """Act."""
    if what == "break":
        raise ToolError("broken")
    return f"{what} is done"


def everything(**options: Any) -> Agent[str]:
    """A run that comes past every phase: a tool that works, one that fails, a view that is too full, a natural end."""
    answers: list[Any] = [[call("act", what="this")], [call("act", what="break")], "Done."]
    # By the number of requests: what is compacted takes its answers with it.
    model = ScriptedModel(lambda request: answers[len(model.requests) - 1], usage=Usage(90, 5))
    window = Window(tokens=100, keep_last=1, background=False)
    return Agent(name="clerk", model=model, tools=[act], window=window, **options)


async def lived(agent: Agent[str], store: Store, **options: Any) -> tuple[Session[Any], Any]:
    """One run, and the end of its session; the session can still be read from."""
    async with Runtime(store, agents=[agent], **options) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
        return session, result


# Every phase


def test_the_phases_are_those_of_the_specification() -> None:
    assert list(PHASES) == FIELDS
    assert set(FIELDS) == {
        "session_start",
        "session_end",
        "input",
        "run_start",
        "run_end",
        "turn_start",
        "turn_end",
        "before_model",
        "after_model",
        "tool_gate",
        "before_tool",
        "after_tool",
        "compaction",
        "error",
        "natural_end",
    }


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_every_hook_is_called_in_its_place(memory: Store, is_async: bool) -> None:
    order: list[str] = []

    def observer(phase: str) -> Callable[[Any], Any]:
        def note(moment: Any) -> None:
            assert moment.here.session == "x"
            assert moment.here.tenant == "acme"
            assert moment.here.deps == "the deps"
            assert moment.here.state.uid
            order.append(phase)

        async def note_async(moment: Any) -> None:
            await asyncio.sleep(0)
            note(moment)

        return note_async if is_async else note

    agent = everything(hooks=[Hooks(**{phase: observer(phase) for phase in FIELDS})])
    async with Runtime(memory, agents=[agent], deps="the deps") as runtime:
        session = await runtime.open(agent, id="x", tenant="acme")
        assert (await soon(session.run("go"))).output == "Done."
        await until(lambda: order[-1:] == ["run_end"])
        await session.delete()
    assert set(order) == set(FIELDS)
    watched = [phase for phase in order if phase in ("session_start", "run_start", "turn_start", "turn_end", "run_end")]
    assert watched == ["session_start", "run_start", *["turn_start", "turn_end"] * 3, "run_end"]
    assert order[-1] == "session_end"
    acted = [
        phase for phase in order if phase in ("before_model", "after_model", "tool_gate", "before_tool", "after_tool")
    ]
    turn = ["before_model", "after_model", "tool_gate", "before_tool", "after_tool"]
    assert acted == [*turn, *turn, "before_model", "after_model"]
    assert order.count("error") == 1
    assert order.count("input") == 1
    assert order.count("natural_end") == 1


async def test_the_runtimes_hooks_come_first_then_the_agents_in_the_order_of_registration(memory: Store) -> None:
    order: list[str] = []

    def hooks(name: str) -> Hooks:
        return Hooks(before_model=lambda moment: order.append(name), turn_end=lambda moment: order.append(f"{name}."))

    agent = Agent(name="clerk", model=ScriptedModel(["Done."]), hooks=[hooks("c"), hooks("d")])
    await lived(agent, memory, hooks=[hooks("a"), hooks("b")])
    assert order == ["a", "b", "c", "d", "a.", "b.", "c.", "d."]


async def _nothing(moment: Any) -> None:
    return None


async def _pass_on(action: Any, perform: Any) -> Any:
    return await perform(action)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hooks": [Hooks(**dict.fromkeys(FIELDS, lambda moment: None))]},
        {"hooks": [Hooks(**dict.fromkeys(FIELDS, _nothing))]},
        {"middleware": [_pass_on]},
    ],
    ids=["nothing", "sync hooks", "async hooks", "middleware"],
)
async def test_what_answers_at_once_costs_no_commit(memory: Store, options: Any) -> None:
    """A turn keeps its two commits: the answer with what comes of its call, the outcome with the next turn."""
    agent = Agent(name="clerk", model=ScriptedModel([[call("act")], "Done."]), tools=[act], **options)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        records = await session.records()
    at = {type(record.event).__name__: record.at for record in reversed(records)}
    assert at["ModelResponded"] == at["CallChecked"] == at["CallStarted"]
    assert at["CallEnded"] == next(r.at for r in records if isinstance(r.event, ModelCalled) and r.event.turn == 2)


def test_what_is_no_hook_is_refused() -> None:
    with pytest.raises(UsageError, match="function of one moment"):
        Hooks(before_model="no")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="more than 0"):
        Hooks(timeout=0)


# What each may do


async def answer_of(hooks: Hooks, *, store: Store | None = None, script: Any = None, **options: Any) -> tuple[Any, Any]:
    """The result and the session of one run of an agent with these hooks."""
    store = store or MemoryStore()
    model = ScriptedModel(script or [[call("act", what="this")], "Done."])
    agent = Agent(name="clerk", model=model, tools=[act], hooks=[hooks], **options)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
    await check_store(store)
    session.model = model
    return result, session


async def test_input_may_change_the_words(memory: Store) -> None:
    await answer_of(Hooks(input=lambda moment: f"{moment.text}, please"), store=memory)
    async with Runtime(memory, engine=None) as runtime:
        assert await said(await runtime.session("x")) == ["go, please"]
        assert len(await events(await runtime.session("x"), InputChanged, vetted=True)) == 1


async def test_input_may_block(memory: Store) -> None:
    result, session = await answer_of(Hooks(input=lambda moment: Block("not today")), store=memory)
    assert (result.reason, result.detail) == ("refusal", "input: not today")
    assert session.model.requests == []
    async with Runtime(memory, engine=None) as runtime:
        assert await said(await runtime.session("x")) == []


async def test_input_may_change_the_limits_and_more_of_its_run(memory: Store) -> None:
    result, session = await answer_of(Hooks(input=lambda moment: Limits(turns=1)), store=memory)
    assert (result.reason, result.detail) == ("limit", "turns")
    wanted = Overrides(settings=ModelSettings(temperature=0.5))
    _, session = await answer_of(Hooks(input=lambda moment: wanted))
    assert [request.settings.temperature for request in session.model.requests] == [0.5, 0.5]


async def test_input_may_stop() -> None:
    result, session = await answer_of(Hooks(input=lambda moment: Stop("closed")))
    assert result.reason == "stopped"
    assert "closed" in result.detail
    assert session.model.requests == []


async def test_before_model_may_change_settings_tools_and_words_of_a_turn() -> None:
    def change(moment: Any) -> Any:
        request = moment.request
        return replace(request, settings=ModelSettings(temperature=0.1), tools=(), instructions="Be brief.")

    _, session = await answer_of(Hooks(before_model=change), script=["Done."])
    (request,) = session.model.requests
    assert (request.settings.temperature, request.tools, request.instructions) == (0.1, (), "Be brief.")


async def test_before_model_may_choose_another_model(memory: Store) -> None:
    other = ScriptedModel(["From the other."], name="other")
    model = ScriptedModel(["From the first."])
    agent = Agent(
        name="clerk", model=model, hooks=[Hooks(before_model=lambda moment: replace(moment.request, model="other"))]
    )
    async with Runtime(memory, agents=[agent]) as runtime:
        runtime._host.world.lend(other, ())
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "From the other."
        assert (await events(session, ModelResponded))[0].model == "other"
    assert model.requests == []


@pytest.mark.parametrize("own", ["Mine.", ModelResponse((Text("Mine."),))], ids=["text", "response"])
async def test_before_model_may_answer_itself(own: Any) -> None:
    result, session = await answer_of(Hooks(before_model=lambda moment: own))
    assert (result.output, result.cost_usd, result.usage.total) == ("Mine.", 0.0, 0)
    assert session.model.requests == []


async def test_after_model_may_change_the_answer() -> None:
    result, _ = await answer_of(Hooks(after_model=lambda moment: moment.text.upper()), script=["Done."])
    assert result.output == "DONE."


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(
    ("verdict", "policy", "outcome"),
    [
        ("allow", Policy(), "ok"),
        (("deny", "too late"), Policy(), "denied"),
        ("deny", Policy(allow=["act"]), "denied"),
        ("allow", Policy(deny=["*"]), "denied"),
        ("allow", Policy(ask=["act"]), "waiting"),
        (("ask", "look at it"), Policy(), "waiting"),
        ("ask", Policy(deny=["act"]), "denied"),
    ],
)
async def test_a_gate_and_the_policy_the_strictest_counts(
    memory: Store, verdict: Any, policy: Policy, outcome: str, is_async: bool
) -> None:
    async def gate(moment: Any) -> Any:
        return verdict

    hooks = Hooks(tool_gate=gate if is_async else lambda moment: verdict)
    model = ScriptedModel([[call("act")], "Done."])
    agent = Agent(name="clerk", model=model, tools=[act], policy=policy, hooks=[hooks])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        if outcome == "waiting":
            assert result.reason == "waiting"
            await session.decide(result.pending[0].id, "approve")
            await soon(session.resume())
            assert [o for _, o, _ in await told(session)] == ["ok"], "an approval satisfies the gate's ask"
        else:
            assert [o for _, o, _ in await told(session)] == [outcome]
        if isinstance(verdict, tuple):
            assert (await events(session, CallChecked))[0].reason == verdict[1]


async def test_a_remembered_approval_satisfies_a_gate(memory: Store) -> None:
    model = ScriptedModel([[call("act")], [call("act")], "Done."])
    agent = Agent(name="clerk", model=model, tools=[act], hooks=[Hooks(tool_gate=lambda moment: "ask")])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        await session.decide(result.pending[0].id, "approve", remember=True)
        assert (await soon(session.resume())).output == "Done."


async def test_before_tool_may_change_the_arguments(memory: Store) -> None:
    await answer_of(Hooks(before_tool=lambda moment: {**moment.arguments, "what": "that"}), store=memory)
    async with Runtime(memory, engine=None) as runtime:
        assert await told(await runtime.session("x")) == [("act", "ok", "that is done")]


async def test_arguments_of_a_hook_that_do_not_fit_reach_no_tool(memory: Store) -> None:
    await answer_of(Hooks(before_tool=lambda moment: {"what": 7}), store=memory)
    async with Runtime(memory, engine=None) as runtime:
        ((_, outcome, text),) = await told(await runtime.session("x"))
        assert outcome == "error"
        assert "do not fit" in text


@pytest.mark.parametrize(
    ("policy", "gate"),
    [
        (Policy(deny=[lambda view: view.arguments["what"] == "that"]), None),
        (Policy(ask=["act"]), None),
        (Policy(), lambda moment: "deny" if moment.arguments["what"] == "that" else None),
        (Policy(), lambda moment: "ask" if moment.arguments["what"] == "that" else None),
    ],
    ids=["denied by the policy", "approved for other arguments", "denied by a gate", "asked about by a gate"],
)
async def test_changed_arguments_do_not_slip_past_the_policy(memory: Store, policy: Policy, gate: Any) -> None:
    ran: list[str] = []

    @tool(effect="once")
    async def act(what: str) -> str:
        """Act."""
        ran.append(what)
        return "done"

    hooks = Hooks(before_tool=lambda moment: {"what": "that"}, tool_gate=gate)
    model = ScriptedModel([[call("act", what="this")], "Done."])
    agent = Agent(name="clerk", model=model, tools=[act], policy=policy, hooks=[hooks])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go", on_pending=lambda pending: "approve"))
        assert result.output == "Done."
        ((_, outcome, text),) = await told(session)
        assert outcome == "denied"
        assert "not carried out" in text
    assert ran == []


async def test_nor_do_those_that_middleware_changed(memory: Store) -> None:
    async def rewrite(action: Any, perform: Any) -> Any:
        return await perform(replace(action, arguments='{"what":"that"}') if isinstance(action, RunTool) else action)

    model = ScriptedModel([[call("act", what="this")], "Done."])
    agent = Agent(name="clerk", model=model, tools=[act], policy=Policy(ask=["act"]), middleware=[rewrite])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go", on_pending=lambda pending: "approve"))).output == "Done."
        assert [outcome for _, outcome, _ in await told(session)] == ["denied"]


async def test_before_tool_may_give_the_result_itself(memory: Store) -> None:
    await answer_of(Hooks(before_tool=lambda moment: Result({"cached": True})), store=memory)
    async with Runtime(memory, engine=None) as runtime:
        assert await told(await runtime.session("x")) == [("act", "ok", '{"cached":true}')]


async def test_after_tool_may_change_the_result(memory: Store) -> None:
    await answer_of(Hooks(after_tool=lambda moment: moment.text.replace("this", "[redacted]")), store=memory)
    async with Runtime(memory, engine=None) as runtime:
        assert await told(await runtime.session("x")) == [("act", "ok", "[redacted] is done")]


async def test_compaction_may_be_answered_by_a_hook(memory: Store) -> None:
    agent = everything(hooks=[Hooks(compaction=lambda moment: f"{len(moment.messages)} messages, in short")])
    await lived(agent, memory)
    async with Runtime(memory, engine=None) as runtime:
        compacted = [event for event in await events(await runtime.session("x"), HistoryCompacted) if not event.error]
        assert compacted
        assert compacted[0].by == "clerk:<lambda>"
        assert compacted[0].parts[0].text.endswith("messages, in short")  # type: ignore[union-attr]


async def test_a_natural_end_may_push_the_run_on_three_times(memory: Store) -> None:
    model = ScriptedModel(["One.", "Two.", "Three.", "Four."])
    pushes: list[int] = []

    def again(moment: Any) -> str:
        pushes.append(moment.pushes)
        return f"Not yet: {moment.text}"

    agent = Agent(name="clerk", model=model, hooks=[Hooks(natural_end=again)])
    session, result = await lived(agent, memory)
    assert (result.output, result.turns, pushes) == ("Four.", 4, [0, 1, 2])
    async with Runtime(memory, engine=None) as runtime:
        session = await runtime.session("x")
        assert await said(session) == ["go", "Not yet: One.", "Not yet: Two.", "Not yet: Three."]
        assert len(await events(session, RunStarted)) == 1
        assert len(await events(session, Noted, kind="pushed_on")) == 3


async def test_what_pushes_a_run_on_is_not_put_before_the_input_hooks(memory: Store) -> None:
    def only_people(moment: Any) -> Any:
        return Block("no") if moment.text != "go" else None

    hooks = Hooks(natural_end=lambda moment: None if moment.pushes else "More.", input=only_people)
    agent = Agent(name="clerk", model=ScriptedModel(["One.", "Two."]), hooks=[hooks])
    _, result = await lived(agent, memory)
    assert result.output == "Two."


async def test_an_end_at_a_limit_is_not_a_natural_one(memory: Store) -> None:
    agent = Agent(
        name="clerk",
        model=ScriptedModel(["One."]),
        limits=Limits(turns=1),
        hooks=[Hooks(natural_end=lambda moment: "More.")],
    )
    session, result = await lived(agent, memory)
    assert (result.output, len(session.state.ended)) == ("One.", 1)


# Directives


STOPPED_EARLY = {"before_model", "input"}


@pytest.mark.parametrize("phase", [phase for phase in FIELDS if phase not in ("session_end", "run_end", "error")])
async def test_each_may_stop_the_run_and_says_who_it_was(memory: Store, phase: str) -> None:
    def closing(moment: Any) -> Stop:
        return Stop("closing time")

    agent = everything(hooks=[Hooks(**{phase: closing})])
    _, result = await lived(agent, memory)
    assert result.reason == "stopped", result
    assert "hook clerk:closing" in result.detail
    assert "closing time" in result.detail


@pytest.mark.parametrize("phase", [phase for phase in FIELDS if phase != "session_end"])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_each_may_emit_schedule_and_change_state(memory: Store, phase: str, is_async: bool) -> None:
    asked: list[str] = []

    def wish(moment: Any) -> Any:
        asked.append(phase)
        moment.here.set(SEEN, 1)
        more = [Schedule("later", after=3600)] if len(asked) == 1 else []
        return [Emit("seen", {"phase": phase}), *more]

    async def wish_async(moment: Any) -> Any:
        await asyncio.sleep(0)
        return wish(moment)

    agent = everything(hooks=[Hooks(**{phase: wish_async if is_async else wish})])
    await lived(agent, memory)
    async with Runtime(memory, engine=None) as runtime:
        session = await runtime.session("x")
        assert asked
        assert await events(session, Noted, kind="hook_failed") == []
        assert len(await events(session, Noted, kind="seen")) == len(asked)
        assert SEEN.read(session.state) == len(asked)
        assert len(await events(session, StateChanged)) == len(asked)
        (queued,) = session.state.queue
        assert queued.at is not None
        assert "clerk:wish" in queued.by


async def test_a_hook_sees_what_was_set_before_it(memory: Store) -> None:
    last = StateKey("last", str, default="nobody")
    found: list[str] = []

    def first(moment: Any) -> None:
        moment.here.set(last, "first")
        found.append(moment.here.get(last))

    hooks = [Hooks(turn_start=first), Hooks(turn_end=lambda moment: found.append(moment.here.get(last)))]
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]), hooks=hooks)
    await lived(agent, memory)
    assert found == ["first", "first"]
    async with Runtime(memory, engine=None) as runtime:
        (change,) = await events(await runtime.session("x"), StateChanged)
        assert (change.changes, change.by) == ({"session/last": "first"}, "clerk:first")


# Failures


CLOSED = {"input": "refusal", "before_model": "failed", "tool_gate": "denied", "before_tool": "denied"}
"""What comes of the input, the run or the call when the gate fails; all other phases go on as if it were not there."""


async def _fail(moment: Any) -> None:
    raise ValueError("out of order")


def _fail_now(moment: Any) -> None:
    raise ValueError("out of order")


async def _exit(moment: Any) -> None:
    raise SystemExit(3)


async def _cancel_itself(moment: Any) -> None:
    raise asyncio.CancelledError


async def _hang(moment: Any) -> None:
    await asyncio.Event().wait()


async def _return_nonsense(moment: Any) -> Any:
    return 3.5


BROKEN = {
    "raises": (_fail, "ValueError: out of order"),
    "raises at once": (_fail_now, "ValueError: out of order"),
    "exits": (_exit, "SystemExit: 3"),
    "cancels itself": (_cancel_itself, "cancelled itself"),
    "hangs": (_hang, "longer than 7 s"),
    "returns nonsense": (_return_nonsense, "it returned"),
}


@pytest.mark.parametrize("way", list(BROKEN))
@pytest.mark.parametrize("phase", [phase for phase in FIELDS if phase != "session_end"])
async def test_a_hook_that_fails_has_its_defined_outcome(memory: Store, phase: str, way: str) -> None:
    function, detail = BROKEN[way]
    clock = ManualClock()
    agent = everything(hooks=[Hooks(**{phase: function}, timeout=7)])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await turned(clock, lambda: session.state.ended and not runtime._host.duty.drivers, step=2)
        result = await run
        failures = await events(session, Noted, kind="hook_failed")
        assert failures
        assert {failure.data["phase"] for failure in failures} == {phase}
        assert detail in failures[0].data["detail"]
        outcome = CLOSED.get(phase, "completed")
        if outcome == "denied":
            assert result.output == "Done."
            assert {o for _, o, _ in await told(session)} == {"denied"}
            assert detail in (await told(session))[0][2]
        else:
            assert result.reason == outcome
            if outcome != "completed":
                assert detail in result.detail
                assert agent.model.requests == []  # type: ignore[union-attr]
            else:
                assert "act" in {name for name, _, _ in await told(session)} or phase == "compaction"


@pytest.mark.parametrize("phase", [phase for phase in FIELDS if phase != "session_end"])
async def test_a_hook_that_does_not_even_end_when_told_is_left_behind(memory: Store, phase: str) -> None:
    over = asyncio.Event()

    async def stubborn(moment: Any) -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    clock = ManualClock()
    agent = everything(hooks=[Hooks(**{phase: stubborn}, timeout=7)])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await turned(clock, lambda: session.state.ended and not runtime._host.duty.drivers, step=2)
        over.set()
        assert (await run).reason in ("completed", "refusal", "failed")


@pytest.mark.parametrize("function", [_fail, _fail_now, _hang])
async def test_a_session_is_deleted_although_its_last_hook_fails(memory: Store, function: Any) -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["message"]))
    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel([]), hooks=[Hooks(session_end=function, timeout=7)])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        deleting = asyncio.ensure_future(session.delete())
        await turned(clock, deleting.done)
        await deleting
        assert [row async for row in runtime.sessions()] == []
    assert "session_end" in reported[0]


async def test_a_hooks_own_time_out_is_its_own(memory: Store) -> None:
    """It runs in the task that asks: what it cancels by itself is what it meant."""

    async def careful(moment: Any) -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "In time."
        return "Never."

    agent = Agent(name="clerk", model=ScriptedModel([]), hooks=[Hooks(before_model=careful)])
    _, result = await lived(agent, memory)
    assert result.output == "In time."


async def test_a_run_can_be_cancelled_while_a_hook_hangs(memory: Store) -> None:
    entered = asyncio.Event()

    async def hang(moment: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    agent = Agent(name="clerk", model=ScriptedModel([]), hooks=[Hooks(before_model=hang)])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await soon(entered.wait())
        await session.cancel()
        assert (await soon(run)).reason == "cancelled"


@pytest.mark.parametrize("phase", ["input", "natural_end", "tool_gate", "before_tool", "after_model"])
@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_nobody_who_wants_an_end_waits_for_a_hook(memory: Store, phase: str, how: str) -> None:
    entered = asyncio.Event()

    async def hang(moment: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    agent = everything(hooks=[Hooks(**{phase: hang})])
    async with Runtime(memory, agents=[agent], grace=0) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await soon(entered.wait())
        await (session.stop() if how == "stop" else session.cancel())
        if (phase, how) == ("before_tool", "stop"):
            await session.cancel()
        result = await soon(run)
        wanted = "stopped" if how == "stop" else "cancelled"
        assert result.reason == wanted or (phase, how, result.reason) == ("before_tool", "stop", "cancelled")
        assert ("go" in await said(session)) == (phase != "input")
        await until(lambda: not runtime._host.duty.drivers)


async def test_a_run_that_is_ended_while_its_end_is_asked_about_ends_once() -> None:
    """The hook answers while the commit of the cancellation is under way."""
    committing, entered = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def append(self, batch: Batch) -> None:
            if any(b'"cancelled"' in entry.payload for entry in batch.entries):
                committing.set()
                for _ in range(20):
                    await asyncio.sleep(0)
            await super().append(batch)

    async def wait(moment: Any) -> None:
        entered.set()
        await committing.wait()

    store = Slow()
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]), hooks=[Hooks(natural_end=wait)])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await soon(entered.wait())
        await session.cancel()
        assert (await soon(run)).reason == "cancelled"
        await until(lambda: not runtime._host.duty.drivers)
        assert len(await events(session, RunEnded)) == 1
    await check_store(store)


async def test_a_stop_before_the_model_is_asked_waits_for_nobody(memory: Store) -> None:
    """The model's task has not had its first step yet: there is nothing to wait for."""
    clock = ManualClock()
    model = ScriptedModel(["Never."])
    agent = Agent(name="clerk", model=model, hooks=[Hooks(turn_start=lambda moment: Stop("at once"))])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).reason == "stopped", "the clock stands still"
    assert model.requests == []


async def test_a_stop_is_for_the_run_that_it_is_about(memory: Store) -> None:
    hooks = Hooks(run_end=lambda moment: Stop("too late"))
    agent = Agent(name="clerk", model=ScriptedModel(["One.", "Two."]), hooks=[hooks])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        runs = [await session.start("first"), await session.start("second")]
        assert [(await soon(run)).output for run in runs] == ["One.", "Two."]


async def test_a_hook_cannot_ask_for_more_than_was_reserved(memory: Store) -> None:
    def greedy(moment: Any) -> Any:
        return replace(moment.request, settings=ModelSettings(max_tokens=10**6))

    model = ScriptedModel(["Done."])
    agent = Agent(name="clerk", model=model, limits=Limits(tokens=500), hooks=[Hooks(before_model=greedy)])
    await lived(agent, memory)
    assert 0 < (model.requests[0].settings.max_tokens or 0) <= 500


async def test_observers_hold_up_no_commit_and_are_through_before_the_session_is_released(memory: Store) -> None:
    go_on = asyncio.Event()
    through: list[str] = []

    async def slow(moment: Any) -> None:
        await go_on.wait()
        through.append("run_end")

    agent = Agent(name="clerk", model=ScriptedModel(["Done."]), hooks=[Hooks(run_end=slow)])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "Done."
        assert through == []
        assert await runtime.driver_of(session) is not None
        go_on.set()
        await until(lambda: not runtime._host.duty.drivers)
    assert through == ["run_end"]


async def test_hooks_survive_what_the_session_goes_through(store: str | Store) -> None:
    """Two runs and a second process: phases of a session once, of runs and turns each time."""
    order: list[str] = []
    watched = ("session_start", "run_start", "run_end", "turn_start", "turn_end")
    hooks = Hooks(**{phase: (lambda moment, phase=phase: order.append(phase)) for phase in watched})
    model = ScriptedModel(["One.", "Two."])
    agent = Agent(name="clerk", model=model, hooks=[hooks])
    for words in ("first", "second"):
        async with Runtime(store, agents=[agent]) as runtime:
            session = await runtime.open(agent, id="x")
            await soon(session.run(words))
    run = ["run_start", "turn_start", "turn_end", "run_end"]
    assert order == ["session_start", *run, *run]


async def test_a_turn_that_waits_ends_when_its_calls_have(memory: Store) -> None:
    order: list[str] = []
    hooks = Hooks(
        turn_start=lambda moment: order.append(f"start {moment.number}"),
        turn_end=lambda moment: order.append(f"end {moment.number}"),
    )
    model = ScriptedModel([[call("act")], "Done."])
    agent = Agent(name="clerk", model=model, tools=[act], policy=Policy(ask=["act"]), hooks=[hooks])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert order == ["start 1"]
        await session.decide(result.pending[0].id, "approve")
        await soon(session.resume())
        await until(lambda: order[-1] == "end 2")
    assert order == ["start 1", "end 1", "start 2", "end 2"]


async def test_errors_are_told_with_what_failed(memory: Store) -> None:
    from perdure import ModelError

    found: list[tuple[str, str, str]] = []
    hooks = Hooks(error=lambda moment: found.append((moment.kind, moment.tool, moment.detail)))
    model = ScriptedModel([[call("act", what="break")], ModelError("no such model", kind="not_found")])
    agent = Agent(name="clerk", model=model, tools=[act], hooks=[hooks])
    _, result = await lived(agent, memory)
    assert result.reason == "failed"
    assert found[0] == ("error", "act", "broken")
    assert (found[1][0], found[1][1]) == ("not_found", "")


# Gates and the state that they read


def counting(key: StateKey[int], allowed: int, kind: str) -> Callable[[Any], Any]:
    """A gate that lets so many calls pass in a run."""

    def gate(moment: Any) -> Any:
        count = moment.here.get(key)
        if count >= allowed:
            return "deny", f"{allowed} calls a run"
        moment.here.set(key, 1 if key.reducer else count + 1)
        return None

    async def at_once(moment: Any) -> Any:
        return gate(moment)

    async def later(moment: Any) -> Any:
        await asyncio.sleep(0)
        said = gate(moment)
        await asyncio.sleep(0)
        return said

    return {"sync": gate, "async": at_once, "awaits": later}[kind]


@pytest.mark.parametrize("kind", ["sync", "async", "awaits"])
@pytest.mark.parametrize("folds", [False, True], ids=["exclusive", "reducer"])
@pytest.mark.parametrize("allowed", [1, 2])
async def test_the_gates_of_one_turn_see_what_those_before_them_have_changed(
    memory: Store, kind: str, folds: bool, allowed: int
) -> None:
    key = StateKey("calls", int, scope="run", default=0, reducer=(lambda one, other: one + other) if folds else None)
    model = ScriptedModel([[call("act", what=str(n)) for n in range(4)], "Done."])
    agent = Agent(name="clerk", model=model, tools=[act], hooks=[Hooks(tool_gate=counting(key, allowed, kind))])
    await lived(agent, memory)
    async with Runtime(memory, engine=None) as runtime:
        session = await runtime.session("x")
        assert [outcome for _, outcome, _ in await told(session)] == ["ok"] * allowed + ["denied"] * (4 - allowed)
        assert [event.changes for event in await events(session, StateChanged)] == [
            {"run/calls": n + 1} for n in range(allowed)
        ]
        assert not await events(session, Noted, kind="hook_failed")
    await check_store(memory)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_gate_sees_what_the_gate_before_it_has_changed(memory: Store, is_async: bool) -> None:
    key = StateKey("calls", int, scope="run", default=0)
    found: list[int] = []

    def gate(moment: Any) -> None:
        found.append(moment.here.get(key))
        moment.here.set(key, found[-1] + 1)

    async def agate(moment: Any) -> None:
        gate(moment)

    hooks = [Hooks(tool_gate=agate if is_async else gate), Hooks(tool_gate=gate)]
    agent = Agent(name="clerk", model=ScriptedModel([[call("act")], "Done."]), tools=[act], hooks=hooks)
    await lived(agent, memory)
    async with Runtime(memory, engine=None) as runtime:
        session = await runtime.session("x")
        assert found == [0, 1]
        assert [outcome for _, outcome, _ in await told(session)] == ["ok"]
        assert [event.changes for event in await events(session, StateChanged)] == [{"run/calls": 1}, {"run/calls": 2}]


async def test_a_gate_that_is_overtaken_without_end_denies(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.gating.MAX_AGAIN", 3)
    key = StateKey("calls", int, default=0)
    asked: list[int] = []

    async def gate(moment: Any) -> None:
        asked.append(moment.here.get(key))
        moment.here.set(key, asked[-1] + 1)
        await runtime._host.request(session._log, ChangeState({"session/calls": 100 * len(asked)}, "somebody"))

    agent = Agent(
        name="clerk", model=ScriptedModel([[call("act")], "Done."]), tools=[act], hooks=[Hooks(tool_gate=gate)]
    )
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        ((_, outcome, text),) = await told(session)
    assert (outcome, len(asked)) == ("denied", 4)
    assert "calls was changed meanwhile" in text


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_gate_whose_change_cannot_be_made_denies(memory: Store, is_async: bool) -> None:
    def broken(one: int, other: int) -> int:
        raise ValueError("no sum")

    key = StateKey("calls", int, default=0, reducer=broken)

    def gate(moment: Any) -> None:
        moment.here.set(key, 1)

    async def agate(moment: Any) -> None:
        gate(moment)

    hooks = Hooks(tool_gate=agate if is_async else gate)
    agent = Agent(name="clerk", model=ScriptedModel([[call("act")], "Done."]), tools=[act], hooks=[hooks])
    await lived(agent, memory)
    async with Runtime(memory, engine=None) as runtime:
        session = await runtime.session("x")
        ((_, outcome, text),) = await told(session)
        assert outcome == "denied"
        assert "no sum" in text


async def _go_on(over: asyncio.Event) -> None:
    while not over.is_set():
        try:
            await over.wait()
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("way", ["itself", "by a task of its own"])
@pytest.mark.parametrize("phase", FIELDS)
async def test_a_hook_that_will_not_end_has_the_outcome_of_one_that_fails(memory: Store, phase: str, way: str) -> None:
    """What was there stays there, the hook behind it is asked, and nobody who refuses is passed over."""
    over, asked, reported = asyncio.Event(), list[str](), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["message"]))

    async def stubborn(moment: Any) -> None:
        await (_go_on(over) if way == "itself" else asyncio.create_task(_go_on(over)))

    clock = ManualClock()
    behind = Hooks(**{phase: lambda moment: asked.append(phase)})
    agent = everything(hooks=[Hooks(**{phase: stubborn}, timeout=7), behind])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await turned(clock, lambda: session.state.ended and not runtime._host.duty.drivers, step=2)
        result, outcomes = await run, {outcome for _, outcome, _ in await told(session)}
        failures = await events(session, Noted, kind="hook_failed")
        deleting = asyncio.ensure_future(session.delete())
        await turned(clock, deleting.done, step=2)
    over.set()
    closed = CLOSED.get(phase, "completed")
    assert bool(asked) == (phase not in (*CLOSED, "natural_end"))
    if phase == "session_end":
        assert "longer than 7 s" in reported[0]
        return
    assert {failure.data["phase"] for failure in failures} == {phase}
    assert "longer than 7 s" in failures[0].data["detail"]
    assert result.reason == ("completed" if closed == "denied" else closed)
    if closed == "denied":
        assert outcomes == {"denied"}
    elif closed == "completed":
        assert "ok" in outcomes or phase == "compaction"
        assert result.usage.total >= 3 * 95


async def test_what_a_hook_that_will_not_end_holds_is_let_go(memory: Store) -> None:
    freed: list[str] = []

    async def stubborn(moment: Any) -> None:
        try:
            await _go_on(asyncio.Event())
        finally:
            freed.append("it")

    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]), hooks=[Hooks(after_model=stubborn, timeout=7)])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        run = await (await runtime.open(agent)).start("go")
        await turned(clock, lambda: bool(freed), step=2)
        assert (await soon(run)).output == "Done."

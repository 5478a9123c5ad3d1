"""Sessions for replays, made by chance: of a seed, always the same one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

from perdure import Agent, Limits, ModelError, Policy, Record, Refused, Runtime, Session, ToolContext, ToolError, tool
from perdure.core.specs import Window
from perdure.events import CallStarted
from perdure.ports import ModelRequest
from perdure.stores.memory import MemoryStore
from perdure.testing import Reply, ScriptedModel, call
from perdure.tools import ask_user
from tests.runtime.scenes import crashing, soon

KINDS = ("text", "calls", "calls", "approvals", "joined", "stopped", "cancelled", "crashed", "failed", "empty")
MAX_ROUNDS = 20


class Scene:
    """One agent, its tools, and a gate at which a tool may be held."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.gate = asyncio.Event()
        self.gate.set()
        self.answers: list[Any] = []
        self.ran: list[str] = []

    def agent(self, **changes: Any) -> Agent[Any]:
        ran = self.ran

        @tool(effect="read")
        async def look(what: str) -> str:
            ran.append("look")
            for _ in range(len(what) % 4):
                await asyncio.sleep(0)
            return f"{what} is fine"

        @tool(effect="idempotent")
        async def hold(what: str) -> str:
            ran.append("hold")
            await self.gate.wait()
            return f"held {what}"

        @tool(effect="once")
        async def send(to: str) -> str:
            ran.append("send")
            await self.gate.wait()
            return f"sent to {to}"

        @tool(ask=True)
        async def act(what: str, times: int = 1) -> str:
            ran.append("act")
            return f"{what} done {times} times"

        @tool
        async def fail(how: str) -> str:
            ran.append("fail")
            raise ToolError("it did not work") if how == "softly" else RuntimeError("boom")

        @tool(effect="read", sequential=True)
        async def step(number: int) -> int:
            ran.append("step")
            return number + 1

        @tool(background=True)
        async def later(what: str) -> str:
            ran.append("later")
            await asyncio.sleep(0)
            return f"{what}, later"

        @tool
        async def finish(ctx: ToolContext) -> str:
            ran.append("finish")
            ctx.end_run("enough")
            return "finished"

        choices: dict[str, Any] = {
            "limits": Limits(turns=self.random.choice([3, 20]), calls=self.random.choice([None, None, 4])),
            "concurrency": self.random.choice([None, None, 1, 2]),
            "policy": Policy(deny=["look"] if self.random.random() < 0.1 else []),
            "window": Window(
                tokens=self.random.choice([None, None, 400]), keep_last=2, background=self.random.random() < 0.5
            ),
        }
        tools = [look, hold, send, act, fail, step, later, finish, ask_user()]
        return Agent(name="clerk", model=ScriptedModel(self._answer), tools=tools, **{**choices, **changes})

    def _answer(self, request: ModelRequest) -> Any:
        return self.answers.pop(0) if self.answers else "Done."

    def calls(self, count: int) -> list[Any]:
        made: list[Any] = []
        for _ in range(count):
            word = self.random.choice(["a", "bb", "ccc"])
            made.append(
                self.random.choice(
                    [
                        call("look", what=word),
                        call("look", what=word),
                        call("step", number=self.random.randrange(3)),
                        call("fail", how=self.random.choice(["softly", "hard"])),
                        call("look", where=word),
                        call("nothing", what=word),
                        call("later", what=word),
                    ]
                )
            )
        return made


async def decide_all(scene: Scene, session: Session[Any]) -> None:
    """Answers whatever waits, in one way or another, until nothing does."""
    for _ in range(MAX_ROUNDS):
        pending = await session.pending()
        if not pending:
            return
        item = scene.random.choice(pending)
        choice = scene.random.choice(["approve", "deny", "edit", "remember"])
        head = session.state.seq
        if item.kind == "question":
            await session.answer({item.id: ["blue"]}, by="ann")
        elif item.kind == "unknown":
            await session.decide(item.id, scene.random.choice(["retry", "deny"]), by="ann")
        elif choice == "edit":
            await session.decide(item.id, "edit", arguments={"what": "other", "times": 2}, by="ann")
        else:
            decision = "deny" if choice == "deny" else "approve"
            await session.decide(item.id, decision, by="ann", reason="so", remember=choice == "remember")
        await soon(settled(session, head))


async def settled(session: Session[Any], after: int = 0) -> None:
    """Until the session waits, or has nothing to do."""
    from perdure.core.rules import next_actions
    from perdure.core.state import in_flight

    log = session._log  # pyright: ignore[reportPrivateUsage]
    await log.until(lambda state: state.seq > after and not in_flight(state) and not next_actions(state))


async def play(scene: Scene, session: Session[Any], kind: str) -> None:
    random = scene.random
    match kind:
        case "text":
            scene.answers += [f"Text {random.randrange(10)}."]
        case "calls":
            scene.answers += [scene.calls(random.randint(1, 4)) for _ in range(random.randint(1, 3))]
        case "approvals":
            scene.answers += [
                [call("act", what="x"), *scene.calls(1), call("act", what=random.choice(["x", "y"]))],
                [call("ask_user", questions=[{"question": "Which colour?"}])],
            ]
        case "failed":
            scene.answers += [scene.calls(1), ModelError("no such key", kind="auth")]
        case "empty":
            scene.answers += ["", Reply("Again.", stop="length"), [call("finish"), call("look", what="a")]]
        case _:
            scene.gate.clear()
            held = random.choice([call("hold", what="x"), call("send", to="bob")])
            scene.answers += [[held, *scene.calls(2)], scene.calls(1)]
    head = session.state.seq
    run = await session.start(f"{kind}, please")
    if kind in ("joined", "stopped", "cancelled"):
        await seen_after(session, head, CallStarted)
        if kind == "joined":
            await session.send("and this", busy=random.choice(["join", "queue", "interrupt"]))
        elif kind == "stopped":
            await session.stop(by="ann")
        else:
            await session.cancel(by="ann")
        scene.gate.set()
    with suppress(Refused):
        await soon(run)
    await soon(settled(session))
    await decide_all(scene, session)
    await soon(settled(session))


async def seen_after(session: Session[Any], head: int, kind: type[Any]) -> None:
    async def look() -> None:
        async for item in session.stream(after=head):
            if isinstance(item, Record) and isinstance(item.event, kind):
                return

    await soon(look())


async def crash(scene: Scene, store: MemoryStore, agent: Agent[Any]) -> None:
    """A process dies while a tool works; the next one goes on."""
    scene.gate.clear()
    name = scene.random.choice(["hold", "send"])
    held = call("hold", what="x") if name == "hold" else call("send", to="bob")
    scene.answers += [[held, call("look", what="bb")], "After the crash."]
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.session("x")
        head = session.state.seq
        await session.start("crash, please")
        await seen_after(session, head, CallStarted)
    scene.gate.set()


async def record(seed: int) -> tuple[Scene, Agent[Any], list[Record]]:
    """A session of three to six inputs, and the agent that it was recorded with."""
    scene, store = Scene(seed), MemoryStore()
    agent = scene.agent()
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x", metadata={"seed": str(seed)})
        if scene.random.random() < 0.2:
            greeting = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
            await session.import_history(greeting, source="elsewhere")
    for kind in scene.random.choices(KINDS, k=scene.random.randint(3, 6)):
        if kind == "crashed":
            await crash(scene, store, agent)
        async with Runtime(store, agents=[agent]) as runtime:
            session = await runtime.session("x")
            if kind == "crashed":
                await soon(settled(session))
                await decide_all(scene, session)
            else:
                await play(scene, session, kind)
            await between(scene, session)
    async with Runtime(store, engine=None) as runtime:
        return scene, agent, await (await runtime.session("x")).records()


async def between(scene: Scene, session: Session[Any]) -> None:
    """What people do between runs."""
    choice = scene.random.random()
    scene.answers.clear()
    if session.state.run is not None:
        return
    if choice < 0.1:
        await session.rewind(scene.random.randint(1, session.state.seq))
    elif choice < 0.15:
        await session.clear()
    elif choice < 0.2:
        await session.tag("here")
    elif choice < 0.25:
        await session.rename("A title")


def said(records: Sequence[Record]) -> list[str]:
    return [type(record.event).__name__ for record in records]

"""Everything that may be under way when a cancel comes: what ends in time, what will not, and what holds a process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from perdure import Policy, ToolContext, tool
from perdure.runtime.wishes import Prepared
from tests.proof.cancel_scene import Cast, Scene

Context = ToolContext[Any, Any]


def _tools(scene: Scene, work: Any, **more: Any) -> dict[str, Any]:
    """The tool that makes trouble, one that runs beside it and one that waits for its end."""

    @tool(effect="read")
    async def look(ctx: Context) -> str:
        """Look."""
        with scene.inside(ctx.call):
            await scene.arrive("look runs")
            return "seen"

    @tool(sequential=True)
    async def last(ctx: Context) -> str:
        """Comes last."""
        with scene.inside(ctx.call):
            await scene.arrive("last runs")
            return "done"

    return {"tools": [look, work, last], **more}


def _quick(scene: Scene, **options: Any) -> Any:
    @tool(**options)
    async def work(ctx: Context) -> str:
        """Work."""
        with scene.inside(ctx.call):
            await scene.arrive("work runs")
            return "worked"

    return work


def cooperates(scene: Scene) -> dict[str, Any]:
    @tool
    async def work(ctx: Context) -> str:
        """Work."""
        with scene.inside(ctx.call):
            scene.reach("work runs")
            await scene.linger()
            await scene.arrive("work ends")
            return "worked"

    return _tools(scene, work)


def rolls_back(scene: Scene) -> dict[str, Any]:
    @tool
    async def work(ctx: Context) -> str:
        """Work."""
        with scene.inside(ctx.call):
            scene.reach("work runs")
            try:
                await scene.linger()
            except asyncio.CancelledError:
                return "rolled back"
            return "worked"

    return _tools(scene, work)


def ignores(scene: Scene) -> dict[str, Any]:
    @tool
    async def work(ctx: Context) -> str:
        """Work."""
        with scene.inside(ctx.call):
            scene.reach("work runs")
            await scene.stubbornly(scene.linger())
            return "too late"

    return _tools(scene, work)


def thread_heeds(scene: Scene) -> dict[str, Any]:
    @tool
    def work(ctx: Context) -> str:
        """Work."""
        with scene.inside(ctx.call):
            scene.reach("work runs")
            scene.block(lambda: ctx.cancelled)
            scene.reach("work ends")
            scene.block(lambda: ctx.cancelled)
            return "worked"

    return _tools(scene, work)


def thread_blocks(scene: Scene) -> dict[str, Any]:
    @tool
    def work(ctx: Context) -> str:
        """Work."""
        with scene.inside(ctx.call):
            scene.reach("work runs")
            scene.block()
            return "too late"

    return _tools(scene, work)


def thread_awaits(scene: Scene) -> dict[str, Any]:
    @tool
    def work(ctx: Context) -> str:
        """Work."""
        with scene.inside(ctx.call):
            scene.reach("work runs")
            ctx.wait(scene.linger())
            return "worked"

    return _tools(scene, work)


def holds_a_process(scene: Scene) -> dict[str, Any]:
    @tool
    async def work(ctx: Context) -> str:
        """Work."""
        with scene.inside(ctx.call), subprocess.Popen(["sleep", "600"]) as process:
            scene.processes.append(process.pid)
            try:
                scene.reach("the process runs")
                await scene.linger()
            finally:
                process.kill()
            return "worked"

    return _tools(scene, work)


def holds_processes_in_a_thread(scene: Scene) -> dict[str, Any]:
    @tool
    def work(ctx: Context) -> str:
        """Work; the shell's own child has to go with it."""
        command = "sleep 600 & echo $!; wait"
        shell = ["sh", "-c", command]
        with (
            scene.inside(ctx.call),
            subprocess.Popen(shell, stdout=subprocess.PIPE, start_new_session=True) as process,
        ):
            assert process.stdout is not None
            scene.processes += [process.pid, int(process.stdout.readline())]
            try:
                scene.reach("the processes run")
                scene.block(lambda: ctx.cancelled)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
            return "worked"

    return _tools(scene, work)


def waits_for_a_process_in_a_thread(scene: Scene) -> dict[str, Any]:
    """Nobody can end such a thread: it is left behind with its process, until the test lets go of it."""

    @tool
    def work(ctx: Context) -> str:
        """Work."""
        with scene.inside(ctx.call), subprocess.Popen(["sleep", "600"]) as process:
            scene.left_behind.append(process.pid)
            try:
                scene.reach("the process runs")
                scene.block()
            finally:
                process.kill()
            return "too late"

    return _tools(scene, work)


def _operation(scene: Scene, *, is_stubborn: bool) -> dict[str, Any]:
    @tool
    async def work(ctx: Context) -> str:
        """Work elsewhere."""
        with scene.inside(ctx.call):
            await scene.arrive("the operation starts")
            return f"op-{ctx.call}"

    @work.check
    async def follow(operation: str, ctx: Context) -> str:
        with scene.inside():
            scene.followed.append(operation)
            scene.reach("the operation is followed")
            await scene.linger()
            return "worked"

    @work.cancel
    async def end(operation: str, ctx: Context) -> None:
        with scene.inside():
            scene.ended_elsewhere.append(operation)
            if is_stubborn:
                await scene.linger()

    return _tools(scene, work)


def operates(scene: Scene) -> dict[str, Any]:
    return _operation(scene, is_stubborn=False)


def operates_and_cannot_be_ended(scene: Scene) -> dict[str, Any]:
    return _operation(scene, is_stubborn=True)


def fails_and_tries_again(scene: Scene) -> dict[str, Any]:
    @tool(effect="idempotent", retries=3)
    async def work(ctx: Context) -> str:
        """Work."""
        # A second try is the same start.
        with scene.inside():
            scene.reach("work runs")
            if scene.moment.fired:
                raise RuntimeError("out of order")
            return "worked"

    return _tools(scene, work)


def waits_for_an_approval(scene: Scene) -> dict[str, Any]:
    return _tools(scene, _quick(scene, ask=True))


def model_hangs(scene: Scene) -> dict[str, Any]:
    return _tools(scene, _quick(scene), model="hangs")


def model_ignores(scene: Scene) -> dict[str, Any]:
    return _tools(scene, _quick(scene), model="ignores")


def check_hangs(scene: Scene) -> dict[str, Any]:
    async def rule(view: Any) -> bool:
        with scene.inside():
            scene.reach("a check runs")
            await scene.linger()
            return False

    return _tools(scene, _quick(scene), policy=Policy(deny=[rule]))


def check_ignores(scene: Scene) -> dict[str, Any]:
    async def rule(view: Any) -> bool:
        with scene.inside():
            scene.reach("a check runs")
            await scene.stubbornly(scene.linger())
            return False

    return _tools(scene, _quick(scene), policy=Policy(deny=[rule]))


def _listening(scene: Scene, *, is_stubborn: bool) -> dict[str, Any]:
    work = _quick(scene)

    @work.listen
    async def prepare() -> AsyncIterator[Prepared]:
        with scene.inside():
            yield Prepared({}, "1")
            scene.reach("somebody listens")
            if is_stubborn:
                await scene.stubbornly(scene.linger())
            else:
                await scene.linger()
            with suppress(GeneratorExit):
                yield Prepared({}, "2", ready=True)

    return _tools(scene, work)


def listen_hangs(scene: Scene) -> dict[str, Any]:
    return _listening(scene, is_stubborn=False)


def listen_ignores(scene: Scene) -> dict[str, Any]:
    return _listening(scene, is_stubborn=True)


KINDS: tuple[Cast, ...] = (
    cooperates,
    rolls_back,
    ignores,
    thread_heeds,
    thread_blocks,
    thread_awaits,
    holds_a_process,
    holds_processes_in_a_thread,
    waits_for_a_process_in_a_thread,
    operates,
    operates_and_cannot_be_ended,
    fails_and_tries_again,
    waits_for_an_approval,
    model_hangs,
    model_ignores,
    check_hangs,
    check_ignores,
    listen_hangs,
    listen_ignores,
)

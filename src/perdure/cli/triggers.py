"""perdure triggers: list, add, pause, resume, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.cli.agents import AgentOption
from perdure.cli.complete import SessionArgument, trigger_names
from perdure.cli.terminal import JsonOption, StoreOption, TenantFilter, TenantOption, run_async

if TYPE_CHECKING:
    from perdure.core.specs import TriggerSpec
    from perdure.runtime.session import Session
    from perdure.wiring import Runtime

app = typer.Typer(
    help="What sends sessions inputs by itself: list, add, pause, resume and remove.",
    epilog='Example: perdure triggers add desk daily "Write the report of {date}" --cron "0 9 * * 1-5"',
)

TriggerArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The trigger's name.", show_default=False, autocompletion=trigger_names),
]


@app.callback(invoke_without_command=True)
def options(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command("list")
def list_(store: StoreOption = None, tenant: TenantFilter = None, json: JsonOption = False) -> None:
    """List the triggers of all sessions, what is due next first.

    Example: perdure triggers list --json
    """
    run_async(_list(store, tenant, json))


async def _list(store: str | None, tenant: str | None, json: bool) -> None:
    from perdure.cli.remote import beside
    from perdure.cli.schedules import show_moment, show_schedule, show_state
    from perdure.cli.screen import open_screen
    from perdure.cli.terminal import patience, print_json
    from perdure.cli.words import count, shorten, visible

    async with beside(store) as runtime, patience("reading the triggers …"):
        rows = await runtime.triggers(tenant=tenant)
    if json:
        for row in rows:
            print_json(row)
        return
    screen = open_screen()
    if not rows:
        screen.say("There are no triggers.")
    for row in rows:
        known = row.trigger
        if known.trigger is None:
            continue
        style = "dim" if known.is_paused else ""
        screen.line("⏲", f"{visible(row.session)} · {visible(known.name)} · {show_schedule(known.trigger)}", "bold")
        times = [f"next {show_moment(known.next_at)}"] if known.next_at is not None else []
        times += [f"last {show_moment(known.last_at)}"] if known.last_at is not None else []
        screen.line(" ", " · ".join([show_state(known), *times, f"fired {count(known.fired, 'time')}"]), style)
        screen.line(" ", shorten(known.template, 300), "cyan")
        if known.error:
            screen.line("!", visible(known.error), "yellow")


@app.command()
def add(
    id: SessionArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The trigger's name.", show_default=False)],
    template: Annotated[
        str,
        typer.Argument(
            metavar="WORDS", help="The input; {time}, {date}, {count}, {path} … are filled in.", show_default=False
        ),
    ],
    every: Annotated[float | None, typer.Option(help="Again after so many seconds.", show_default=False)] = None,
    cron: Annotated[str | None, typer.Option(help='A cron line, like "0 9 * * 1-5".', show_default=False)] = None,
    at: Annotated[str | None, typer.Option(help='Once, at "2030-12-24 18:00".', show_default=False)] = None,
    files: Annotated[str | None, typer.Option(help="When this file or folder changes.", show_default=False)] = None,
    pattern: Annotated[str, typer.Option(help="Which files count.")] = "*",
    tz: Annotated[str, typer.Option(help="The time zone of --cron and --at.")] = "UTC",
    missed: Annotated[str, typer.Option(help="What was missed: once, skip or all.")] = "once",
    busy: Annotated[str, typer.Option(help="While the session works: queue, join, interrupt or refuse.")] = "queue",
    agent: AgentOption = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Add a trigger to a session; the same name again changes it.

    With --agent the session is opened if there is none. A process that has the agent fires it while it is open; what it
    misses otherwise, --missed settles.

    Example: perdure triggers add desk daily "Write the report of {date}" --cron "0 9 * * 1-5" --tz Europe/Berlin
    """
    from perdure.core.errors import UsageError
    from perdure.core.specs import At, Cron, Every, Files

    given: list[TriggerSpec] = []
    given += [Every(every)] if every is not None else []
    given += [Cron(cron, tz)] if cron is not None else []
    given += [At(at, tz)] if at is not None else []
    given += [Files(files, pattern)] if files is not None else []

    async def work() -> None:
        if len(given) != 1:
            raise UsageError("A trigger needs exactly one of --every, --cron, --at and --files.")
        await _add(_Wish(id, name, template, given[0], missed, busy), agent, store, tenant, json)

    run_async(work())


class _Wish:
    """What was typed."""

    def __init__(self, id: str, name: str, template: str, trigger: TriggerSpec, missed: str, busy: str) -> None:
        self.id = id
        self.name = name
        self.template = template
        self.trigger = trigger
        self.missed: Any = missed
        self.busy: Any = busy


async def _add(wish: _Wish, agent: str | None, store: str | None, tenant: str, json: bool) -> None:
    from perdure.cli.answers import who
    from perdure.cli.schedules import show_trigger
    from perdure.cli.terminal import print_json, store_url
    from perdure.cli.words import visible
    from perdure.wiring import Runtime

    async with Runtime(store_url(store, must_exist=agent is None), engine=None) as runtime:
        session = await _find_or_open(runtime, wish.id, agent, store, tenant)
        known = await session.set_trigger(
            wish.name, wish.trigger, wish.template, missed=wish.missed, busy=wish.busy, by=who()
        )
    if json:
        print_json({"session": session.id, "trigger": known})
    else:
        print(f"{visible(session.id)}: {visible(known.name)} is set: {show_trigger(known)}")


async def _find_or_open(runtime: Runtime, id: str, agent: str | None, store: str | None, tenant: str) -> Session[Any]:
    from dataclasses import replace

    from perdure.cli.agents import load_agent
    from perdure.cli.remote import find
    from perdure.core.errors import NotFound
    from perdure.testing.played import PlayedModel

    if agent is None:
        try:
            return await find(runtime, id, store, tenant)
        except NotFound as missing:
            raise NotFound(f"{str(missing).rstrip('.')}, or --agent FILE.py:NAME opens it.") from None
    found = load_agent(agent, None)
    # Nobody is asked here, so that an agent without a model will do.
    found = found if found.model else replace(found, model=PlayedModel(None, "none"))
    return await runtime.open(found, id=id, tenant=tenant)


@app.command()
def pause(
    id: SessionArgument,
    name: TriggerArgument,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Keep a trigger from firing until it is resumed.

    Example: perdure triggers pause desk daily
    """
    run_async(_change("pause", id, name, store, tenant, json))


@app.command()
def resume(
    id: SessionArgument,
    name: TriggerArgument,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Let a paused trigger fire again, from now on.

    Example: perdure triggers resume desk daily
    """
    run_async(_change("resume", id, name, store, tenant, json))


@app.command()
def remove(
    id: SessionArgument,
    name: TriggerArgument,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Take a trigger away; what it has sent stays.

    Example: perdure triggers remove desk daily
    """
    run_async(_change("remove", id, name, store, tenant, json))


async def _change(
    what: Literal["pause", "resume", "remove"], id: str, name: str, store: str | None, tenant: str, json: bool
) -> None:
    from perdure.cli.answers import who
    from perdure.cli.remote import beside, find
    from perdure.cli.schedules import show_trigger
    from perdure.cli.terminal import print_json
    from perdure.cli.words import visible

    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        match what:
            case "pause":
                await session.pause_trigger(name, by=who())
            case "resume":
                await session.resume_trigger(name, by=who())
            case "remove":
                await session.remove_trigger(name, by=who())
        known = (await session.triggers()).get(name)
    if json:
        print_json({"session": session.id, "name": name, "trigger": known})
    else:
        said = "removed" if known is None else show_trigger(known)
        print(f"{visible(session.id)}: {visible(name)} · {said}")

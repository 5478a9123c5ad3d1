"""perdure sessions rewind, tag, rename, set-agent, export, import: a session's past and whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.agents import AgentOption
from perdure.cli.complete import SessionArgument, tag_names
from perdure.cli.terminal import JsonOption, StoreOption, TenantOption, run_async

if TYPE_CHECKING:
    from pathlib import Path

PointArgument = Annotated[
    str,
    typer.Argument(metavar="AT", help="A record's number, or a tag.", show_default=False, autocompletion=tag_names),
]


def rewind(
    id: SessionArgument,
    at: PointArgument,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Go back to what the conversation was at a record or tag.

    The log keeps everything; what tools have done stays done. A point inside of a turn means the last one before it.

    Example: perdure sessions rewind order-7 12
    """
    run_async(_rewind(id, at, store, tenant, json))


async def _rewind(id: str, at: str, store: str | None, tenant: str, json: bool) -> None:
    from perdure.cli.answers import who
    from perdure.cli.remote import beside, find
    from perdure.cli.terminal import print_json
    from perdure.cli.words import count

    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        became = await session.rewind(at, by=who())
        messages = len(await session.history())
    if json:
        print_json({"session": session.id, "at": became, "messages": messages})
    else:
        print(f"{session.id}: the conversation is as it was at record {became}, with {count(messages, 'message')}.")


def tag(
    id: SessionArgument,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The tag; without one, all are listed.", show_default=False)
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="The record or tag that gets the name.", show_default=False, autocompletion=tag_names),
    ] = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Give a record a name, or list the names; the same name again moves it.

    Example: perdure sessions tag order-7 billed --at 12
    """
    run_async(_tag(id, name, at, store, tenant, json))


async def _tag(id: str, name: str | None, at: str | None, store: str | None, tenant: str, json: bool) -> None:
    from perdure.cli.remote import beside, find
    from perdure.cli.terminal import print_json
    from perdure.cli.words import visible

    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        tags = {name: await session.tag(name, at)} if name is not None else await session.tags()
    if json:
        print_json({"session": session.id, "tags": tags})
        return
    for tagged, seq in tags.items():
        print(f"{seq:>6} {visible(tagged)}")
    if not tags:
        print(f"{visible(session.id)} has no tags.")


def rename(
    id: SessionArgument,
    title: Annotated[str, typer.Argument(metavar="TITLE", help="What people call it.", show_default=False)],
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Give a session a title; its id stays.

    Example: perdure sessions rename order-7 "The order of Ann"
    """
    run_async(_rename(id, title, store, tenant, json))


async def _rename(id: str, title: str, store: str | None, tenant: str, json: bool) -> None:
    from perdure.cli.remote import beside, find
    from perdure.cli.terminal import print_json
    from perdure.cli.words import visible

    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        await session.rename(title)
    if json:
        print_json({"session": session.id, "title": session.state.title})
    else:
        print(f"{visible(session.id)} is called {visible(session.state.title)!r} now.")


def set_agent(
    id: SessionArgument,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.", show_default=False)],
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Give a session to another agent.

    An open run goes on with it at its next turn, if the process that drives it knows that agent.

    Example: perdure sessions set-agent order-7 billing
    """
    run_async(_set_agent(id, agent, store, tenant, json))


async def _set_agent(id: str, agent: str, store: str | None, tenant: str, json: bool) -> None:
    from perdure.cli.remote import beside, find
    from perdure.cli.terminal import print_json
    from perdure.cli.words import visible

    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        await session.set_agent(agent)
    if json:
        print_json({"session": session.id, "agent": session.agent})
    else:
        print(f"{visible(session.id)} belongs to the agent {visible(session.agent)!r} now.")


def export(
    id: SessionArgument,
    output: Annotated[str | None, typer.Option("--output", "-o", help="The file.", show_default=False)] = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Write a whole session as JSON lines, with what it keeps beside its log.

    Without --output they go to standard output.

    Example: perdure sessions export order-7 -o order-7.jsonl
    """
    run_async(_export(id, output, store, tenant, json))


async def _export(id: str, output: str | None, store: str | None, tenant: str, json: bool) -> None:
    import sys
    from pathlib import Path

    from perdure.cli.remote import beside, find
    from perdure.cli.terminal import patience, print_json
    from perdure.cli.words import count

    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        async with patience(f"reading {id} …"):
            lines = [line async for line in session.export()]
    if output is None:
        sys.stdout.write(b"".join(lines).decode())
        return
    write_file(Path(output), b"".join(lines))
    if json:
        print_json({"session": session.id, "file": output, "lines": len(lines)})
    else:
        print(f"{session.id} is in {output}, {count(len(lines), 'line')}.")


def write_file(path: Path, data: bytes) -> None:
    """Whole, or a sentence."""
    from perdure.core.errors import UsageError

    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"The file {path} cannot be written ({error.strerror}); name another one.") from None


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The export; - reads a pipe.", show_default=False)],
    id: Annotated[str | None, typer.Option("--id", help="Another id for it.", show_default=False)] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Another tenant for it.", show_default=False)] = None,
    history: Annotated[
        bool, typer.Option("--history", help="FILE is a JSON list of messages from another system.")
    ] = False,
    agent: AgentOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Read a session that was exported, or a conversation from elsewhere.

    All of it is checked before any of it is written. An open run can be resumed. With --history, a session of the agent
    gets the messages; calls without results and the like are repaired once, and told.

    Example: perdure sessions import order-7.jsonl --id order-7b
    """
    if history:
        run_async(_import_history(file, id, tenant or "", agent, store, json))
    else:
        run_async(_import(file, id, tenant, store, json))


async def _import(file: str, id: str | None, tenant: str | None, store: str | None, json: bool) -> None:
    from perdure.cli.terminal import patience, print_json, store_url
    from perdure.cli.words import count
    from perdure.core.errors import Conflict
    from perdure.wiring import Runtime

    lines = _read(file).split(b"\n")
    async with Runtime(store_url(store), engine=None) as runtime, patience("importing …"):
        try:
            session = await runtime.import_session(lines, id=id, tenant=tenant)
        except Conflict as taken:
            raise Conflict(f"{str(taken).partition(';')[0]}; take another --id.") from None
    if json:
        print_json({"session": session.id, "uid": session.uid, "records": session.state.seq})
    else:
        print(f"{session.id} is here, {count(session.state.seq, 'record')}.")


async def _import_history(
    file: str, id: str | None, tenant: str, agent: str | None, store: str | None, json: bool
) -> None:
    from dataclasses import replace

    from perdure.cli.agents import load_agent
    from perdure.cli.terminal import print_json, store_url
    from perdure.cli.words import count, visible
    from perdure.core.codec import decode_json
    from perdure.core.errors import UsageError
    from perdure.runtime.foreign import Reader
    from perdure.testing.played import PlayedModel
    from perdure.wiring import Runtime

    if agent is None:
        raise UsageError("A history needs an agent that goes on with it; give its code with --agent FILE.py:NAME.")
    try:
        messages = decode_json(_read(file))
    except ValueError as error:
        raise UsageError(f"{file} is no JSON: {error}.") from None
    if not isinstance(messages, list):
        raise UsageError(f"{file} is no JSON list of messages; give [{{'role': …, 'content': …}}, …].")
    if not messages:
        raise UsageError(f"{file} has no messages; there is nothing to import.")
    # Before there is a session: what is refused leaves nothing behind.
    Reader().read(messages)  # pyright: ignore[reportUnknownArgumentType]
    found = load_agent(agent, None)
    # Nobody is asked here, so that an agent without a model will do.
    found = found if found.model else replace(found, model=PlayedModel(None, "none"))
    async with Runtime(store_url(store), engine=None) as runtime:
        session = await runtime.open(found, id=id, tenant=tenant)
        repairs = await session.import_history(messages, source=file)  # pyright: ignore[reportUnknownArgumentType]
        imported = len(await session.history())
    if json:
        print_json({"session": session.id, "uid": session.uid, "messages": imported, "repairs": repairs})
        return
    print(f"{session.id} has {count(imported, 'message')}; {count(len(repairs), 'repair')}.")
    for line in repairs:
        print(f"  {visible(line)}")


def _read(file: str) -> bytes:
    import sys
    from pathlib import Path

    from perdure.core.errors import UsageError

    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"The file {file} cannot be read ({error.strerror}); name another one.") from None

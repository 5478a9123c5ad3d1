"""perdure sessions tree: a session and those of its sub-agents, with what each does, waits for and has used."""

from __future__ import annotations

from perdure.cli.family import Member, read_tree
from perdure.cli.remote import beside, find
from perdure.cli.screen import Screen, open_screen
from perdure.cli.terminal import patience, print_json
from perdure.cli.words import count, name_pause, show_spent, visible

STYLES = {"idle": "green", "running": "cyan", "waiting": "bold yellow"}


async def print_tree(id: str, store: str | None, tenant: str, *, json: bool) -> None:
    async with beside(store) as runtime, patience("reading the sessions …"):
        members = await read_tree(runtime, await find(runtime, id, store, tenant))
    if json:
        for member in members:
            print_json(member)
    else:
        show_tree(open_screen(), members)


def show_tree(screen: Screen, members: list[Member]) -> None:
    """One line a session, below the one that started it."""
    for at, member in enumerate(members):
        status = member.last if member.status == "idle" and member.last else member.status
        said = [member.session, f"agent {member.agent}", status, *_waits(member)]
        said += [count(member.turns, "turn"), count(member.usage.total, "token")]
        said += show_spent(member.cost_usd or 0.0, is_priced=member.cost_usd is not None)
        style = "red" if status in ("failed", "cancelled", "limit") else STYLES[member.status]
        screen.line("●", " · ".join(map(visible, said)), mark_style=style, margin=_branch(members, at))


def _waits(member: Member) -> list[str]:
    """What has to happen before it goes on."""
    waits = [f"waits for {name_pause(item.kind)} of {item.tool}" for item in member.pending]
    if member.waits_for:
        first, *others = member.waits_for
        more = f" and {count(len(others), 'other')}" if others else ""
        waits.append(f"waits for {first}{more}")
    return waits


def _branch(members: list[Member], at: int) -> str:
    """The lines that lead to a session from its parents."""
    drawn = ""
    for depth in range(1, members[at].depth + 1):
        rest = (member.depth for member in members[at + 1 :])
        goes_on = next((deep == depth for deep in rest if deep <= depth), False)
        if depth == members[at].depth:
            drawn += "├ " if goes_on else "└ "
        else:
            drawn += "│ " if goes_on else "  "
    return drawn

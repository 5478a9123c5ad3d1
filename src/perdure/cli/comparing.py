"""What `perdure sessions compare` shows: in two columns where there is room, else one under the other."""

from __future__ import annotations

from perdure.cli.remote import beside, find
from perdure.cli.screen import Screen, open_screen
from perdure.cli.terminal import patience, print_json
from perdure.cli.words import count, shorten, show_spent, visible
from perdure.runtime.compare import Comparison, Row, Side, compare

COLUMNS = 90
"""A terminal narrower than this, and a pipe, gets the lines one under the other."""


async def compare_sessions(left: str, right: str, store: str | None, tenant: str, *, json: bool) -> None:
    async with beside(store) as runtime, patience("reading the sessions …"):
        found = await compare(await find(runtime, left, store, tenant), await find(runtime, right, store, tenant))
    if json:
        print_json(found)
        return
    screen = open_screen()
    parted = f"they part after record {found.parted}" if found.parted else "they have no past in common"
    screen.say((visible(found.left.id), "bold"), " and ", (visible(found.right.id), "bold"), f": {parted}")
    for side in (found.left, found.right):
        screen.say((f"{visible(side.id)}: {_spent(side)}", "dim"))
    _show_rows(screen, found)


def _spent(side: Side) -> str:
    cost = show_spent(side.cost_usd or 0.0, is_priced=side.cost_usd is not None)
    return " · ".join([count(side.head, "record"), count(side.usage.total, "token"), *cost])


def _show_rows(screen: Screen, found: Comparison) -> None:
    if not found.rows:
        screen.say("Neither has anything since.")
    elif screen.is_terminal and screen.width >= COLUMNS:
        half = (screen.width - 5) // 2
        for row in found.rows:
            left, right = shorten(row.left, half), shorten(row.right, half)
            screen.say((f"{left:<{half}} {_mark(row)} {right}", "dim" if row.same else ""))
    else:
        for row in found.rows:
            if row.same:
                screen.line("=", row.left, "dim")
                continue
            for mark, text in (("<", row.left), (">", row.right)):
                if text:
                    screen.line(mark, text)


def _mark(row: Row) -> str:
    return "=" if row.same else "≠"

"""perdure decide: answer a suspended call, from any terminal, any day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.complete import decisions, pending_ids
from perdure.cli.terminal import JsonOption, StoreOption, run_async

if TYPE_CHECKING:
    from perdure.core.events import DecisionKind


def decide(
    pending: Annotated[
        str,
        typer.Argument(
            metavar="PENDING",
            help="The id that `perdure pending` shows.",
            show_default=False,
            autocompletion=pending_ids,
        ),
    ],
    decision: Annotated[
        str,
        typer.Argument(
            metavar="DECISION",
            help="approve, deny, edit, answer or retry.",
            show_default=False,
            autocompletion=decisions,
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why; the model reads it.", show_default=False)] = "",
    value: Annotated[
        str | None, typer.Option(help="With answer: the result, JSON or text.", show_default=False)
    ] = None,
    arguments: Annotated[str | None, typer.Option(help="With edit: JSON arguments.", show_default=False)] = None,
    by: Annotated[str | None, typer.Option(help="Who decides; you by default.", show_default=False)] = None,
    remember: Annotated[bool, typer.Option("--remember", help="Approve the same call again without asking.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Record a decision, and say who will act on it.

    A call is decided once, by whoever is first.

    Example: perdure decide 3f2a9c-2-1 deny --reason "too much"
    """
    answer = {"by": by, "reason": reason, "value": value, "arguments": arguments, "remember": remember}
    run_async(_decide(pending, decision, answer, store, json))


async def _decide(pending: str, decision: str, answer: dict[str, Any], store: str | None, json: bool) -> None:
    from perdure.cli.answers import read_arguments, read_value, who
    from perdure.cli.remote import beside, tell
    from perdure.cli.words import shell
    from perdure.core.errors import NotFound

    kind = _check(decision, answer)
    answer |= {
        "by": answer["by"] or who(),
        "value": read_value(answer["value"]),
        "arguments": read_arguments(answer["arguments"]),
    }
    async with beside(store) as runtime:
        try:
            session = await runtime.decide(pending, kind, **answer)
        except NotFound:
            there = shell("pending", store=store)
            raise NotFound(f"Nothing pending has the id {pending!r}; {there} shows what waits.") from None
        await tell(runtime, session, decision, store, json=json)


def _check(decision: str, answer: dict[str, Any]) -> DecisionKind:
    from typing import cast, get_args

    from perdure.core.errors import UsageError
    from perdure.core.events import DecisionKind

    if decision not in get_args(DecisionKind):
        raise UsageError(f"{decision!r} is no decision; take one of {', '.join(get_args(DecisionKind))}.")
    if decision == "edit" and answer["arguments"] is None:
        raise UsageError("edit needs the other arguments; give them with --arguments '{…}'.")
    if decision == "answer" and answer["value"] is None:
        raise UsageError("answer needs the result; give it with --value.")
    return cast(DecisionKind, decision)

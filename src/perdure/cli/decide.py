"""perdure decide: answer a suspended call, from any terminal, any day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.complete import decisions, pending_ids
from perdure.cli.terminal import JsonOption, StoreOption, run_async

if TYPE_CHECKING:
    from perdure.core.events import DecisionKind
    from perdure.core.messages import JSON
    from perdure.runtime.session import Session
    from perdure.wiring import Runtime


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
    result: Annotated[
        str | None,
        typer.Argument(
            metavar="[VALUE]",
            help="With answer: the result or the answers, JSON or text; for a choice the option's number or text.",
            show_default=False,
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; the model reads it.", show_default=False)] = "",
    value: Annotated[str | None, typer.Option(help="The same as VALUE.", show_default=False)] = None,
    arguments: Annotated[str | None, typer.Option(help="With edit: JSON arguments.", show_default=False)] = None,
    by: Annotated[str | None, typer.Option(help="Who decides; you by default.", show_default=False)] = None,
    remember: Annotated[bool, typer.Option("--remember", help="Approve the same call again without asking.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Record a decision, and say who will act on it.

    A call is decided once, by whoever is first.

    Several questions are answered by one JSON list, with null for one that is skipped.

    Example: perdure decide 3f2a9c-2-1 deny --reason "too much"
    """
    if value is None:
        value = result
    answer = {"by": by, "reason": reason, "value": value, "arguments": arguments, "remember": remember}
    run_async(_decide(pending, decision, answer, store, json))


async def _decide(pending: str, decision: str, answer: dict[str, Any], store: str | None, json: bool) -> None:
    from perdure.cli.answers import read_arguments, who
    from perdure.cli.remote import beside, tell
    from perdure.cli.words import shell
    from perdure.core.errors import NotFound

    kind = _check(decision, answer)
    text: str | None = answer["value"]
    answer |= {"by": answer["by"] or who(), "arguments": read_arguments(answer["arguments"])}
    async with beside(store) as runtime:
        answer["value"] = await _read(runtime, pending, kind, text)
        try:
            session = await _record(runtime, pending, kind, answer, text)
        except NotFound:
            there = shell("pending", store=store)
            raise NotFound(f"Nothing pending has the id {pending!r}; {there} shows what waits.") from None
        await tell(runtime, session, decision, store, json=json)


async def _read(runtime: Runtime, pending: str, kind: DecisionKind, text: str | None) -> JSON:
    """The value that the text stands for: answers to questions, or JSON, or the text itself."""
    from perdure.cli.answers import read_value
    from perdure.cli.questions import questions_of, read_answers

    if kind != "answer" or text is None:
        return read_value(text)
    item = next((item for item in await runtime.pending() if item.id == pending), None)
    questions = questions_of(item) if item else []
    return read_answers(questions, text) if questions else read_value(text)


async def _record(
    runtime: Runtime, pending: str, kind: DecisionKind, answer: dict[str, Any], text: str | None
) -> Session[Any]:
    """What is JSON and does not fit as such may fit as the text that was typed, as 42 does for a string."""
    from perdure.core.errors import Refused

    try:
        return await runtime.decide(pending, kind, **answer)
    except Refused as refused:
        if kind != "answer" or isinstance(answer["value"], str | list):
            raise
        try:
            return await runtime.decide(pending, kind, **{**answer, "value": text})
        except Refused:
            raise refused from None


def _check(decision: str, answer: dict[str, Any]) -> DecisionKind:
    from typing import cast, get_args

    from perdure.core.errors import UsageError
    from perdure.core.events import DecisionKind

    if decision not in get_args(DecisionKind):
        raise UsageError(f"{decision!r} is no decision; take one of {', '.join(get_args(DecisionKind))}.")
    if decision == "edit" and answer["arguments"] is None:
        raise UsageError("edit needs the other arguments; give them with --arguments '{…}'.")
    if decision == "answer" and answer["value"] is None:
        raise UsageError("answer needs the result; give it behind the word answer.")
    return cast(DecisionKind, decision)

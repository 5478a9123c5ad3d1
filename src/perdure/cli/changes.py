"""What changed a session beside its turns (views of the past, inputs, messages, settings, state), in plain words."""

from __future__ import annotations

from perdure.cli.errands import show_sent, show_settled
from perdure.cli.schedules import show_trigger
from perdure.cli.words import count, shorten, show_parts
from perdure.core.events import (
    Event,
    HistoryCut,
    HistoryImported,
    InputChanged,
    MessageSent,
    MessageSettled,
    SettingsChanged,
    StateChanged,
    TriggerSet,
)

LONGEST = 300
HANDING_OVER = "hand-off to "
"""How a hand-off signs the cut that its filter makes."""


def show_change(event: Event) -> tuple[str, str, str] | None:
    """Mark, text and style of a line; None for what is no such change."""
    match event:
        case HistoryCut(by=by) if by.startswith(HANDING_OVER):
            return "↶", f"what is read of the past is filtered, by the {by}", "magenta"
        case HistoryCut(to=to, by=by):
            where = f"the conversation is back at record {to}" if to else "the conversation begins anew"
            return "↶", f"{where}{f', by {by}' if by else ''}", "magenta"
        case HistoryImported(messages=messages, repairs=repairs, source=source):
            what = f"{count(len(messages), 'message')} imported{f' from {source}' if source else ''}"
            return "⇥", f"{what} · {count(len(repairs), 'repair')}", "magenta"
        case InputChanged(input=number, retracted=True, by=by):
            return "⊘", f"input {number} was retracted{f' by {by}' if by else ''}", "yellow"
        case InputChanged(input=number, parts=parts, vetted=False, blocked="", by=by) if parts is not None:
            edited = f"input {number} was edited{f' by {by}' if by else ''}"
            return "·", f"{edited}: {shorten(show_parts(parts), LONGEST)}", "dim"
        case InputChanged(blocked=blocked) if blocked:
            return "✗", f"the input is blocked: {shorten(blocked, LONGEST)}", "red"
        case InputChanged(parts=parts) if parts is not None:
            return "·", f"the input was changed to: {shorten(show_parts(parts), LONGEST)}", "dim"
        case InputChanged(due=True):
            return "·", "an input that was scheduled is due", "dim"
        case SettingsChanged(agent=agent) if agent:
            return "⇄", f"from now on it is {agent}'s", "bold"
        case SettingsChanged(title=title, model=model) if title is not None and not model:
            return "·", f"it is called {title!r} now", "dim"
        case SettingsChanged(model=model):
            return "·", f"from now on {model or 'the model of its agent'} answers", "dim"
        case MessageSent():
            return "✉", f"message {event.message} {show_sent(event)}", "cyan"
        case MessageSettled():
            return show_settled(event)
        case StateChanged(changes=changes, by=by):
            return "·", f"{', '.join(changes)} changed{f' by {by}' if by else ''}", "dim"
        case TriggerSet():
            return "⏲", f"trigger {shorten(event.name, LONGEST)} · {show_trigger(event)}", "dim"
        case _:
            return None

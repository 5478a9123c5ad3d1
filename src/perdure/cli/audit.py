"""perdure sessions audit: each transition of each call, who brought it about and why, from the records alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Literal

import msgspec
from msgspec import to_builtins

from perdure.cli.errands import show_address, show_grant, show_sent, show_spending
from perdure.cli.remote import beside, find
from perdure.cli.screen import Screen, open_screen
from perdure.cli.terminal import patience, print_json
from perdure.cli.words import count, shorten, show_arguments, show_parts, show_pause, show_until, visible
from perdure.core.codec import encode_json
from perdure.core.events import (
    CallAdvanced,
    CallChecked,
    CallDecided,
    CallEnded,
    CallStarted,
    CallSuspended,
    MessageSent,
    MessageSettled,
    ModelResponded,
    RunResumed,
)
from perdure.core.messages import JSON, ToolCall
from perdure.core.outcomes import EXPIRY
from perdure.ports import Record

What = Literal[
    "proposed",  # the model wrote the call
    "checked",  # by a rule: it may start, or somebody is to be asked
    "blocked",  # by a rule, or because it does not fit its tool
    "stale",  # an approval is taken back: what it was for has changed
    "handed on",  # a sub-agent works on it, in a session of its own
    "asked",  # it waits for somebody
    "in doubt",  # it waits for somebody who knows whether it took effect
    "decided",  # by somebody
    "expired",  # decided by the clock
    "started",
    "interrupted",  # the process that ran it died
    "replayed",  # started again after a crash, with the same key
    "found again",  # its operation goes on elsewhere, and is followed again after a crash
    "advanced",  # it is an operation elsewhere now
    "ended",
    "unknown",  # ended, and nobody knows whether it took effect
    "sent",  # a message to another session
    "delivered",
    "dead",  # it could not be brought
]
STYLES: dict[What, str] = {
    "blocked": "yellow",
    "stale": "yellow",
    "asked": "yellow",
    "decided": "yellow",
    "expired": "yellow",
    "in doubt": "magenta",
    "interrupted": "magenta",
    "replayed": "magenta",
    "found again": "magenta",
    "unknown": "magenta",
    "dead": "red",
}
BAD_ENDS = {"error": "red", "timeout": "red", "denied": "yellow", "cancelled": "yellow", "superseded": "yellow"}
LONGEST = 300
LONGEST_TOOL = 24
NARROW, WIDE = 72, 110


class Row(msgspec.Struct, frozen=True):
    """One transition of one call, or (call 0) of a message; `data` has in full what `detail` says in words."""

    seq: int
    at: float
    run: int
    call: int
    tool: str
    what: What
    detail: str = ""
    data: dict[str, JSON] = {}


class _Course(msgspec.Struct):
    """What a call has been through so far, as far as later rows need it."""

    tool: str = ""
    is_open: bool = False
    was_interrupted: bool = False
    operation: str = ""
    key: str = ""
    pause: CallSuspended | None = None


def audit(records: Iterable[Record]) -> Iterator[Row]:
    """The transitions of a session's calls, in the order of the log."""
    courses: dict[int, _Course] = {}
    for record in records:
        match record.event:
            case ModelResponded(message=message, model=model):
                for call in message.calls:
                    courses[call.call] = _Course(call.name)
                    yield _row(record, call.call, courses, *_proposed(call, model))
            case RunResumed(epoch=epoch):
                for ordinal in [ordinal for ordinal, course in courses.items() if course.is_open]:
                    courses[ordinal].is_open, courses[ordinal].was_interrupted = False, True
                    text = f"the process that ran it died; epoch {epoch} goes on"
                    yield _row(record, ordinal, courses, "interrupted", text, {"epoch": epoch})
            case CallChecked() | CallSuspended() | CallDecided() | CallStarted() | CallAdvanced() | CallEnded():
                course = courses.setdefault(record.event.call, _Course())
                yield _row(record, record.event.call, courses, *_transition(record, record.event, course))
            case MessageSent() | MessageSettled(input=0):
                number = f"message {record.event.message}"
                yield Row(record.seq, record.at, record.run, 0, number, *_message(record.event))
            case _:
                pass


Said = tuple[What, str, dict[str, JSON]]


def _row(record: Record, call: int, courses: dict[int, _Course], what: What, detail: str, data: dict[str, JSON]) -> Row:
    return Row(record.seq, record.at, record.run, call, courses[call].tool, what, detail, data)


def _proposed(call: ToolCall, model: str) -> Said:
    by = model or "the model"
    shown = show_arguments(call.arguments, LONGEST)
    return "proposed", f"by {by}: {shown or 'no arguments'}", {"by": by, "arguments": call.arguments}


def _transition(
    record: Record,
    event: CallChecked | CallSuspended | CallDecided | CallStarted | CallAdvanced | CallEnded,
    course: _Course,
) -> Said:
    match event:
        case CallChecked():
            return _checked(event)
        case CallSuspended():
            course.is_open, course.was_interrupted, course.pause = False, False, event
            return _asked(event)
        case CallDecided():
            return _decided(event, course.pause, record.at)
        case CallStarted():
            return _started(event, course)
        case CallAdvanced(operation=operation, expires_at=expires_at):
            course.operation = operation
            return (
                "advanced",
                f"operation {operation} under way{show_until(expires_at)}",
                {"operation": operation, "expires_at": expires_at},
            )
        case CallEnded():
            course.is_open = False
            return _ended(event)


def _checked(event: CallChecked) -> Said:
    by = f"rule {event.rule}" if event.rule else "no rule names it"
    data: dict[str, JSON] = {"verdict": event.verdict, "rule": event.rule, "reason": event.reason}
    data |= {"digest": event.digest, "bound": event.bound}
    why = f": {event.reason}" if event.reason and event.verdict in ("deny", "invalid", "stale") else ""
    prepared = ""
    if event.snapshot is not None or event.revision:
        data |= {"snapshot": event.snapshot, "revision": event.revision, "valid_until": event.valid_until}
        prepared = f"; prepared, revision {event.revision or '-'}: {encode_json(event.snapshot).decode()}"
    match event.verdict:
        case "stale":
            return "stale", f"the approval is taken back{why}", data
        case "deny" | "invalid":
            return "blocked", f"{event.verdict} ({by}){why}", data
        case _:
            return "checked", f"{event.verdict} ({by}){prepared}", data


def _asked(event: CallSuspended) -> Said:
    data: dict[str, JSON] = {"kind": event.kind, "prompt": event.prompt, "pause": event.pause}
    then = ""
    if event.expires_at is not None:
        then = f"{show_until(event.expires_at)}, then {event.default}"
        data |= {"expires_at": event.expires_at, "default": event.default}
    prompt = show_pause(event.kind, event.prompt)
    if event.kind == "child":
        return "handed on", f"{prompt}{show_until(event.expires_at)}", data
    if event.kind == "unknown":
        return "in doubt", f"{prompt}{then}", data
    return "asked", f"{event.kind}: {prompt}{then}", data


def _decided(event: CallDecided, pause: CallSuspended | None, at: float) -> Said:
    # Anybody may call themselves by the clock's name: only a time that has come makes it the clock.
    is_due = pause is not None and pause.expires_at is not None and pause.expires_at <= at
    by_clock = event.by == EXPIRY and is_due and pause is not None and pause.pause == event.pause
    data: dict[str, JSON] = {"decision": event.decision, "by": event.by, "reason": event.reason, "pause": event.pause}
    more = ""
    if event.decision == "answer" or event.value is not None:
        data["value"] = event.value
        more += f" with {encode_json(event.value).decode()}"
    if event.arguments is not None:
        data["arguments"] = event.arguments
        more += f" to {event.arguments}"
    if event.remember:
        data["remember"] = event.remember
        more += f", remembered ({event.remember})"
    if event.id:
        data["id"] = event.id
    who = "" if by_clock else f" by {event.by or 'somebody who gave no name'}"
    why = f": {event.reason}" if event.reason else ""
    return "expired" if by_clock else "decided", f"{event.decision}{more}{who}{why}", data


def _started(event: CallStarted, course: _Course) -> Said:
    data: dict[str, JSON] = {"effect": event.effect, "attempt": event.attempt, "key": event.key}
    is_replay, course.is_open, course.was_interrupted = course.was_interrupted, True, False
    key = "same key" if event.key == course.key else "another key"
    course.key = event.key
    said = f"{event.effect}, attempt {event.attempt}"
    if event.child:
        data |= {"child": event.child, "granted": to_builtins(event.granted)}
        said += f", session {event.child}"
        said += f", may use {grant}" if event.granted is not None and (grant := show_grant(event.granted)) else ""
    if course.operation:
        return "found again", f"operation {course.operation}, {said}", {**data, "operation": course.operation}
    if event.attempt == 1:
        return "started", said, data
    if is_replay:
        return "replayed", f"{said}, after a crash, {key}", data
    return "started", f"{said}, as decided, {key}", data


def _ended(event: CallEnded) -> Said:
    text = show_parts(event.parts)
    data: dict[str, JSON] = {"outcome": event.outcome, "in_doubt": event.in_doubt, "result": text}
    data["seconds"] = event.seconds
    if event.spent is not None:
        data["spent"] = to_builtins(event.spent)
        text += show_spending(event.spent)
    if event.outcome == "unknown":
        return "unknown", text, data
    doubt = " (it may have taken effect)" if event.in_doubt else ""
    return "ended", f"{event.outcome}{doubt}: {text}" if text else f"{event.outcome}{doubt}", data


def _message(event: MessageSent | MessageSettled) -> Said:
    match event:
        case MessageSent(to=to, agent=agent, by=by):
            data: dict[str, JSON] = {"message": event.message, "to": show_address(to), "agent": agent, "by": by}
            return "sent", show_sent(event), {**data, "text": show_parts(event.parts)}
        case MessageSettled(dead=dead):
            return "dead" if dead else "delivered", dead, {"message": event.message, "why": dead}


async def audit_session(id: str, store: str | None, tenant: str, *, json: bool) -> None:
    async with beside(store) as runtime, patience("reading the session …"):
        session = await find(runtime, id, store, tenant)
        rows = list(audit(await session.records()))
    if json:
        for row in rows:
            about = {"seq": row.seq, "at": row.at, "run": row.run, "call": row.call, "tool": row.tool}
            print_json({**about, "what": row.what, "detail": row.detail, **row.data})
    else:
        _print_table(open_screen(), id, rows)


def _print_table(screen: Screen, id: str, rows: Sequence[Row]) -> None:
    if not rows:
        screen.say(f"Session {visible(id)} has no calls yet.")
        return
    calls = len({row.call for row in rows if row.call})
    screen.say((visible(id), "bold"), (f" · {count(calls, 'call')}, {count(len(rows), 'transition')}", "dim"))
    # A narrow terminal keeps what happened; when is in `sessions show` and in --json.
    with_time = screen.width >= NARROW
    tool = min(
        LONGEST_TOOL if screen.width >= WIDE else LONGEST_TOOL // 2, max(len("tool"), *(len(row.tool) for row in rows))
    )
    heads = _cells("seq", "time", "call", "tool", "what", tool=tool, with_time=with_time)
    screen.margin = len(heads)
    screen.line(" ", "how", "dim", margin=heads)
    day = ""
    for row in rows:
        when = datetime.fromtimestamp(row.at)
        if with_time and (today := f"{when:%Y-%m-%d}") != day:
            day = today
            screen.line(" ", "", margin=f"{'':>5}  {day}")
        name, ordinal = shorten(row.tool, tool), str(row.call) if row.call else ""
        left = _cells(str(row.seq), f"{when:%H:%M:%S}", ordinal, name, row.what, tool=tool, with_time=with_time)
        style = STYLES.get(row.what) or BAD_ENDS.get(str(row.data.get("outcome", "")), "")
        screen.line(" ", shorten(row.detail, LONGEST), style, margin=left)


def _cells(*words: str, tool: int, with_time: bool) -> str:
    seq, time, call, name, what = words
    when = f"  {time:<8}" if with_time else ""
    return f"{seq:>5}{when}  {call:>4}  {name:<{tool}}  {what:<11}"

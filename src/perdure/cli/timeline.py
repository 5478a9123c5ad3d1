"""A session as lines for a person: turns, calls, outcomes, waits, crashes and costs; live, or from the records.

Rule: every line is made from records and deltas alone, so the live view and `sessions show` cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, cast

from perdure.core.codec import decode_json, encode_json
from perdure.core.deltas import AttemptDiscarded, Delta, DeltasDropped, TextDelta, ToolProgressed
from perdure.core.events import (
    CallDecided,
    CallEnded,
    CallStarted,
    CallSuspended,
    InputAccepted,
    ModelFailed,
    ModelResponded,
    Noted,
    RunEnded,
    RunResumed,
    RunStarted,
    SessionOpened,
    StopRequested,
)
from perdure.core.messages import JSON, Media, Part, Text, ToolCall, Usage
from perdure.ports import Record

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

OUTCOME_STYLES = {
    "ok": ("✓", "green"),
    "error": ("✗", "red"),
    "denied": ("⊘", "yellow"),
    "cancelled": ("⊘", "yellow"),
    "timeout": ("✗", "red"),
    "unknown": ("?", "magenta"),
    "superseded": ("⊘", "yellow"),
}
REASON_STYLES = {"completed": "green", "limit": "yellow", "stopped": "yellow", "cancelled": "yellow"}
ARGUMENT_WIDTH = 40
RESULT_WIDTH = 100


class Timeline:
    """Prints each item as it comes; the answer's text is shown as Markdown while it streams."""

    def __init__(self, console: Console, *, times: bool = False) -> None:
        self.seq = 0
        self._console = console
        self._times = times
        self._calls: dict[int, ToolCall] = {}
        self._started: dict[int, float] = {}
        self._usage = Usage()
        self._cost = 0.0
        self._turns = 0
        self._streamed = ""
        self._live: Live | None = None

    def show(self, item: Record | Delta) -> None:
        match item:
            case Record():
                self.seq = item.seq
                self._show_record(item)
            case TextDelta(text=text):
                self._stream(text)
            case ToolProgressed(call=call, message=message, fraction=fraction):
                done = f" {fraction:.0%}" if fraction is not None else ""
                self._line("…", "dim", f"{self._name(call)}: {message}{done}", "dim")
            case AttemptDiscarded(reason=reason):
                self.close()
                self._line("↻", "yellow", f"asking the model again: {reason}", "yellow")
            case DeltasDropped(count=count):
                self._line("…", "dim", f"{count} pieces of the stream were skipped", "dim")
            case _:
                pass

    def close(self) -> None:
        """Ends the streamed part, if one is open."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._streamed = ""

    def _show_record(self, record: Record) -> None:
        match record.event:
            case SessionOpened(id=id, agent=agent, origin=origin):
                past = f", a fork of {origin.session} at {origin.seq}" if origin else ""
                self._line("◆", "bold", f"session {id}, agent {agent}{past}", "bold", record)
            case InputAccepted(parts=parts, continues=continues):
                text = _shorten(_plain(parts), RESULT_WIDTH) if continues is None else f"go on with run {continues}"
                self._line("▸", "bold cyan", text, "cyan", record)
            case RunStarted():
                self._usage, self._cost, self._turns = Usage(), 0.0, 0
            case ModelResponded():
                self._show_answer(record, record.event)
            case ModelFailed(kind=kind, detail=detail):
                self.close()
                self._line("✗", "red", f"the model gave no answer: {kind} {detail}", "red", record)
            case RunResumed(epoch=epoch):
                self.close()
                self._line("↻", "bold magenta", f"picked up after a crash (epoch {epoch})", "magenta", record)
            case StopRequested(cause=cause, by=by):
                self._line("■", "yellow", f"{cause} requested{f' by {by}' if by else ''}", "yellow", record)
            case RunEnded():
                self._show_end(record, record.event)
            case Noted(kind=kind, data=data):
                self._line("·", "dim", f"{kind} {_shorten(encode_json(data).decode(), RESULT_WIDTH)}", "dim", record)
            case _:
                self._show_call(record)

    def _show_call(self, record: Record) -> None:
        match record.event:
            case CallStarted(call=call, attempt=attempt):
                self._started[call] = record.at
                if attempt > 1:
                    self._line("↻", "magenta", f"{self._name(call)} again, attempt {attempt}", "magenta", record)
            case CallSuspended(call=call, kind=kind, prompt=prompt):
                what = "is in doubt" if kind == "unknown" else f"waits for {kind}"
                self._line("⏸", "bold yellow", f"{self._name(call)} {what}: {prompt}", "yellow", record)
            case CallDecided(call=call, decision=decision, by=by, reason=reason):
                who = f" by {by}" if by else ""
                why = f": {reason}" if reason else ""
                self._line("▹", "yellow", f"{self._name(call)}: {decision}{who}{why}", "yellow", record)
            case CallEnded(call=call, outcome=outcome, parts=parts):
                mark, style = OUTCOME_STYLES[outcome]
                said = "" if outcome == "ok" else f"{outcome}: "
                result = _shorten(_plain(parts), RESULT_WIDTH)
                self._line(mark, style, f"{self._name(call)} → {said}{result}{self._took(call, record)}", "", record)
            case _:
                pass

    def _show_answer(self, record: Record, event: ModelResponded) -> None:
        streamed = bool(self._streamed)
        if self._live is not None:
            self._live.update(self._markdown(event.message.text), refresh=True)
        self.close()
        self._turns += 1
        self._usage += event.usage
        self._cost += event.cost_usd or 0.0
        self._calls |= {call.call: call for call in event.message.calls}
        if event.message.text and not (streamed and self._console.is_terminal):
            self._console.print(self._markdown(event.message.text))

    def _show_end(self, record: Record, event: RunEnded) -> None:
        self.close()
        parts = [event.reason, f"{self._turns} turn{'s' if self._turns != 1 else ''}", f"{self._usage.total} tokens"]
        if self._cost:
            parts.append(f"${self._cost:.4f}")
        if event.detail:
            parts.insert(1, event.detail)
        style = REASON_STYLES.get(event.reason, "red")
        self._line("●", style, " · ".join(parts), style, record)

    def _stream(self, text: str) -> None:
        self._streamed += text
        if not self._console.is_terminal:
            return
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="visible")
            self._live.start()
        self._live.update(self._markdown(self._streamed), refresh=True)

    def _markdown(self, text: str) -> RenderableType:
        from rich.markdown import Markdown

        return Markdown(text) if self._console.is_terminal else text

    def _line(self, mark: str, mark_style: str, text: str, style: str, record: Record | None = None) -> None:
        from rich.text import Text as Styled

        line = Styled()
        if self._times and record is not None:
            at = datetime.fromtimestamp(record.at).strftime("%H:%M:%S")
            line.append(f"{record.seq:>5} {at}  ", "dim")
        line.append(f"{mark} ", mark_style)
        line.append(text, style)
        if self._live is not None:
            self._live.console.print(line)
        else:
            self._console.print(line)

    def _name(self, call: int) -> str:
        known = self._calls.get(call)
        return f"{known.name}({show_arguments(known.arguments)})" if known else f"call {call}"

    def _took(self, call: int, record: Record) -> str:
        started = self._started.get(call)
        if started is None:
            return ""
        seconds = record.at - started
        return f" · {seconds:.1f} s" if seconds >= 1 else f" · {seconds * 1e3:.0f} ms"


def show_arguments(arguments: str) -> str:
    """Arguments as in a Python call, shortened for a line."""
    try:
        values = decode_json(arguments or "{}")
    except ValueError:
        return _shorten(arguments, ARGUMENT_WIDTH)
    if not isinstance(values, dict):
        return _shorten(arguments, ARGUMENT_WIDTH)
    named = cast("dict[str, JSON]", values)
    shown = (f"{key}={encode_json(value).decode()}" for key, value in named.items())
    return _shorten(", ".join(shown), ARGUMENT_WIDTH)


def _plain(parts: Iterable[Part]) -> str:
    return " ".join(part.text if isinstance(part, Text) else _media(part) for part in parts)


def _media(part: Media) -> str:
    return f"[{part.kind} {part.name or part.media_type}, {part.size} bytes]"


def _shorten(text: str, width: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"

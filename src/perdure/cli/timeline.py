"""A session as lines for a person: turns, calls, outcomes, waits, crashes and costs; live, or from the records.

Rule: every line is made from records and deltas alone, so the live view and `sessions show` cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec.structs import replace

from perdure.cli.changes import show_change
from perdure.cli.errands import show_child, show_from, show_grant, show_spending
from perdure.cli.indented import Indented
from perdure.cli.notes import show_note
from perdure.cli.screen import Screen
from perdure.cli.words import (
    count,
    name_pause,
    shorten,
    show_arguments,
    show_compaction,
    show_cost,
    show_parts,
    show_pause,
    show_seconds,
    show_spent,
)
from perdure.core.codec import encode_json
from perdure.core.deltas import (
    AttemptDiscarded,
    CallDelta,
    Delta,
    DeltasDropped,
    TextDelta,
    ToolEmitted,
    ToolProgressed,
)
from perdure.core.events import (
    AgentPinned,
    CallAdvanced,
    CallChecked,
    CallDecided,
    CallEnded,
    CallStarted,
    CallSuspended,
    HistoryCompacted,
    InputAccepted,
    MessageSettled,
    ModelCalled,
    ModelFailed,
    ModelResponded,
    Noted,
    RunEnded,
    RunResumed,
    RunStarted,
    SessionOpened,
    Spent,
    StopRequested,
    Switched,
)
from perdure.core.messages import ToolCall, Usage
from perdure.ports import FromChild, Item, Record

MARGIN = 15
LONGEST = 300
LONGEST_NAME = 100
MODEL = "model"

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
DECIDED = {
    "approve": "approved",
    "deny": "denied",
    "edit": "approved with other arguments",
    "answer": "answered",
    "retry": "to be tried again",
}


class Timeline:
    """Shows each item as it comes. `full` adds when, which record, and a line per turn.

    `echo` shows what somebody typed; records up to `known` are followed, but not shown. `below` is the same for the
    sessions of sub-agents, by their ids.
    """

    def __init__(
        self,
        screen: Screen,
        *,
        full: bool = False,
        echo: bool = True,
        known: int = 0,
        below: Mapping[str, int] | None = None,
    ) -> None:
        self._screen = screen
        self._full = full
        self._echo = echo
        self._known = known
        self._known_below = below or {}
        self._below: dict[tuple[str, int], Timeline] = {}
        self._calls: dict[int, ToolCall] = {}
        self._started: dict[int, float] = {}
        self._suspended: dict[int, float] = {}
        self._operations: dict[int, str] = {}
        self._questions: set[int] = set()
        self._day = ""
        self._asked_at = 0.0
        self._pinned = ""
        self._run = Totals()

    def show(self, item: Item) -> None:
        if isinstance(item, FromChild):
            self._show_below(item)
        else:
            self._show(item)

    def _show_below(self, item: FromChild) -> None:
        where = (item.session, item.call)
        timeline = self._below.get(where)
        if timeline is None:
            # What it was told stands in the call that told it.
            screen, known = Indented(self._screen, item.agent, item.call), self._known_below.get(item.session, 0)
            timeline = Timeline(screen, echo=False, known=known, below=self._known_below)
            self._below[where] = timeline
        timeline.show(item.item)
        if isinstance(item.item, Record) and isinstance(item.item.event, RunEnded):
            del self._below[where]

    def _show(self, item: Record | Delta) -> None:
        match item:
            case Record():
                self._show_record(item)
            case TextDelta(text=text):
                self._screen.end(MODEL)
                self._screen.stream(text)
            case CallDelta(name=name) if name:
                self._screen.begin(MODEL, f"writing a call of {name}")
            case ToolProgressed(call=call, message=message, fraction=fraction):
                done = f" {fraction:.0%}" if fraction is not None else ""
                self._progress(call, f"{message}{done}")
            case ToolEmitted(call=call, data=data):
                self._line(None, "…", f"{self._name(call)}: {encode_json(data).decode()}", "dim")
            case AttemptDiscarded(reason=reason):
                self._screen.discard()
                self._line(None, "↻", f"what was shown of this answer does not count: {reason}", "yellow")
            case DeltasDropped(count=number):
                self._line(None, "…", f"{count(number, 'piece')} of the stream were skipped", "dim")
            case _:
                pass

    def pause(self) -> None:
        self._screen.pause()

    def close(self) -> None:
        self._screen.close()

    def _show_record(self, record: Record) -> None:
        match record.event:
            case SessionOpened(id=id, agent=agent, origin=None):
                self._line(record, "◆", f"session {id} · agent {agent}", "bold")
            case SessionOpened(id=id, agent=agent, origin=origin) if origin and origin.agents:
                self._line(record, "◆", f"session {id} · agent {agent} · {show_from(origin)}", "bold")
            case SessionOpened(id=id, origin=origin) if origin:
                self._line(record, "◆", f"forked at record {origin.seq}: from here on it is session {id}", "bold")
            case AgentPinned(switched=Switched(error=error), spec=spec):
                self._line(record, "⇄", error or f"{spec.name} takes over", "bold")
                self._pinned = spec.name
            case AgentPinned(spec=spec):
                if self._pinned == spec.name:
                    self._line(record, "·", "the agent's definition has changed", "dim")
                elif self._pinned:
                    self._line(record, "⇄", f"{spec.name} goes on", "bold")
                self._pinned = spec.name
            case InputAccepted():
                self._show_input(record, record.event)
            case RunStarted():
                self._run = Totals(record.event.run, record.at)
            case HistoryCompacted() as event:
                self._run.usage += event.usage
                self._run.cost_usd += event.cost_usd or 0.0
                self._run.is_priced = self._run.is_priced and event.cost_usd is not None
                self._line(record, "≡", show_compaction(event), "yellow" if event.error else "dim")
            case StopRequested(cause=cause, by=by):
                self._line(record, "■", f"{cause} requested{f' by {by}' if by else ''}", "yellow")
            case RunResumed():
                self._show_crash(record, record.event)
            case RunEnded():
                self._show_end(record, record.event)
            case ModelCalled() | ModelResponded() | ModelFailed() | Noted():
                self._show_turn(record, record.event)
            case MessageSettled(dead="") if not self._full:
                pass
            case _:
                if (change := show_change(record.event)) is not None:
                    self._line(record, *change)
                self._show_call(record)

    def _show_input(self, record: Record, event: InputAccepted) -> None:
        text = show_parts(event.parts) if event.continues is None else f"go on with run {event.continues}"
        queued = f" · {event.busy}" if self._run.is_open else ""
        if self._echo or queued:
            if self._full and self._run.is_over:
                self._screen.line(" ", "")
            by = f" · by {event.by}" if event.by else ""
            self._line(record, "▸", f"{shorten(text, LONGEST)}{queued}{by}", "bold cyan")

    def _show_turn(self, record: Record, event: ModelCalled | ModelResponded | ModelFailed | Noted) -> None:
        match event:
            case ModelCalled(turn=turn, attempt=attempt):
                self._asked_at = record.at
                self._run.turns = turn
                if attempt > 1:
                    self._line(record, "↻", f"turn {turn}: the model is asked again", "magenta")
                self._screen.begin(MODEL, "thinking")
            case ModelResponded():
                self._show_answer(record, event)
            case ModelFailed(kind=kind, detail=detail):
                self._run.usage += event.wasted
                self._run.cost_usd += event.cost_usd or 0.0
                self._screen.end(MODEL)
                self._screen.discard()
                self._line(record, "✗", f"the model gave no answer: {kind}{f', {detail}' if detail else ''}", "red")
            case Noted():
                self._line(record, *show_note(event))

    def _show_answer(self, record: Record, event: ModelResponded) -> None:
        self._screen.end(MODEL)
        run = self._run
        run.usage += event.usage + event.wasted
        run.cost_usd += event.cost_usd or 0.0
        run.is_priced = run.is_priced and event.cost_usd is not None
        self._calls |= {call.call: call for call in event.message.calls}
        if self._full:
            cached = f" ({event.usage.cached:,} from the cache)" if event.usage.cached else ""
            spent = [f"turn {run.turns}", f"{event.usage.input:,} in{cached}, {event.usage.output:,} out"]
            spent += [show_cost(event.cost_usd)] if event.cost_usd else []
            spent += [show_seconds(record.at - self._asked_at), *([event.model] if event.model else [])]
            self._line(record, "○", " · ".join(spent), "dim")
        if record.seq > self._known and event.message.text.strip():
            self._screen.settle(event.message.text)
        self._screen.discard()

    def _show_call(self, record: Record) -> None:
        match record.event:
            case CallStarted(call=call, attempt=attempt, granted=granted):
                self._started[call] = record.at
                if self._full and granted is not None and (grant := show_grant(granted)):
                    self._line(record, "·", f"{self._name(call)} may use {grant}", "dim")
                if call in self._operations:
                    found = f"{self._name(call)} found again: operation {self._operations[call]} under way"
                    self._line(record, "↻", found, "magenta")
                elif attempt > 1:
                    self._line(record, "↻", f"{self._name(call)} again, attempt {attempt}, same key", "magenta")
                self._screen.begin(f"call {call}", self._name(call))
            case CallAdvanced(call=call, operation=operation):
                self._operations[call] = operation
                self._line(record, "…", f"{self._name(call)} · operation {operation} under way", "cyan")
            case CallChecked(call=call, verdict="stale", reason=reason):
                self._line(record, "↺", f"the approval is taken back · {self._name(call)} · {reason}", "yellow")
            case CallChecked(call=call, snapshot=snapshot, revision=revision) if snapshot is not None:
                shown = shorten(encode_json(snapshot).decode(), self._room(4))
                self._line(record, "◇", f"prepared, revision {revision or '-'} · {self._name(call)} · {shown}", "cyan")
            case CallSuspended(call=call, kind="child", prompt=prompt, expires_at=expires_at):
                # What goes on there is shown there.
                self._screen.end(f"call {call}")
                self._line(record, "⇢", show_child(self._name(call), prompt, expires_at), "cyan")
            case CallSuspended():
                self._show_pause(record, record.event)
            case CallDecided():
                self._show_decision(record, record.event)
            case CallEnded(call=call, outcome=outcome, parts=parts, spent=spent):
                self._screen.end(f"call {call}")
                self._run.spend(spent)
                self._settled(call, record.at)
                mark, style = OUTCOME_STYLES[outcome]
                result = shorten(show_parts(parts), self._room(2))
                said = result if outcome == "ok" else f"{outcome}: {result}"
                started = self._started.pop(call, None)
                took = f" · {show_seconds(record.at - started)}" if started else ""
                self._line(record, mark, f"{self._name(call)} → {said}{show_spending(spent)}{took}", mark_style=style)
            case _:
                pass

    def _show_pause(self, record: Record, event: CallSuspended) -> None:
        if event.kind != "child":
            self._suspended[event.call] = record.at
            self._run.wait_from(record.at)
        if event.kind == "question" and event.prompt and event.pause == 1:
            # Its prompt says all that is in the arguments, and says it for people; behind an approval it is that one's.
            self._questions.add(event.call)
        waits = f"{name_pause(event.kind)} · {self._name(event.call)} · {show_pause(event.kind, event.prompt)}"
        self._line(record, "‖", waits, "yellow")

    def _show_decision(self, record: Record, event: CallDecided) -> None:
        call = self._calls.get(event.call)
        if call is not None and event.arguments is not None:
            self._calls[event.call] = replace(call, arguments=event.arguments)
        since = self._settled(event.call, record.at)
        who = f" by {event.by}" if event.by else ""
        after = f" after {show_seconds(record.at - since)}" if since else ""
        why = f": {event.reason}" if event.reason else ""
        self._line(record, "▹", f"{DECIDED[event.decision]} · {self._name(event.call)}{who}{after}{why}", "yellow")

    def _show_crash(self, record: Record, event: RunResumed) -> None:
        """Whatever was under way was interrupted: the calls that follow say what became of it."""
        under_way = [self._name(call) for call in self._started]
        self._started = {}
        self._screen.close()
        lost = f" · under way: {', '.join(under_way)}" if under_way else ""
        self._line(
            record, "↻", f"the process died; picked up by another one (epoch {event.epoch}){lost}", "bold magenta"
        )

    def _show_end(self, record: Record, event: RunEnded) -> None:
        self._screen.close()
        run = self._run
        parts = [event.reason, *([event.detail] if event.detail else []), count(run.turns, "turn")]
        cached = f", {run.usage.cached / run.usage.input:.0%} of the input from the cache" if run.usage.cached else ""
        parts.append(f"{count(run.usage.total, 'token')}{cached}")
        parts += show_spent(run.cost_usd, is_priced=run.is_priced)
        if run.began:
            run.wait_until(record.at)
            waited = f", {show_seconds(run.waited)} of it waiting" if run.waited >= 1 else ""
            parts.append(f"{show_seconds(record.at - run.began)}{waited}")
        self._line(record, "●", " · ".join(parts), REASON_STYLES.get(event.reason, "red"))
        run.is_open, run.is_over = False, True

    def _progress(self, call: int, text: str) -> None:
        if self._screen.is_terminal:
            self._screen.begin(f"call {call}", f"{self._name(call)} · {text}")
        else:
            self._line(None, "…", f"{self._name(call)}: {text}", "dim")

    def _settled(self, call: int, at: float) -> float | None:
        since = self._suspended.pop(call, None)
        if not self._suspended:
            self._run.wait_until(at)
        return since

    def _line(self, record: Record | None, mark: str, text: str, style: str = "", *, mark_style: str = "") -> None:
        if record is not None and record.seq <= self._known:
            return
        margin = ""
        if self._screen.margin == MARGIN and record is not None:
            when = datetime.fromtimestamp(record.at)
            if (day := f"{when:%Y-%m-%d}") != self._day:
                self._day = day
                self._screen.line(" ", "", margin=day)
            margin = f"{when:%H:%M:%S} {record.seq:>5}"
        self._screen.line(mark, text, style, mark_style=mark_style, margin=margin)

    def _name(self, call: int) -> str:
        known = self._calls.get(call)
        if known and call in self._questions:
            return known.name
        room = min(LONGEST_NAME, self._room(0.5))
        return f"{known.name}({show_arguments(known.arguments, room)})" if known else f"call {call}"

    def _room(self, lines: float) -> int:
        return min(LONGEST, max(30, round(self._screen.width * lines) - 10))


class Totals:
    """What one run has used so far, and how long it waited for people."""

    def __init__(self, run: int = 0, began: float = 0.0) -> None:
        self.is_open = bool(run)
        self.is_over = False
        self.began = began
        self.turns = 0
        self.usage = Usage()
        self.cost_usd = 0.0
        self.is_priced = True
        self.waited = 0.0
        self._waiting_since: float | None = None

    def spend(self, spent: Spent | None) -> None:
        """What a sub-agent has used is the run's too."""
        if spent is not None:
            self.usage += spent.usage
            self.cost_usd += spent.cost_usd or 0.0
            self.is_priced = self.is_priced and spent.cost_usd is not None

    def wait_from(self, at: float) -> None:
        if self._waiting_since is None:
            self._waiting_since = at

    def wait_until(self, at: float) -> None:
        if self._waiting_since is not None:
            self.waited += at - self._waiting_since
            self._waiting_since = None

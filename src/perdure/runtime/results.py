"""What a caller gets back: a run's result, and the decision that an `on_pending` function may return."""

from __future__ import annotations

from typing import Any, Generic, Literal

import msgspec

from perdure.core.errors import RunIncomplete
from perdure.core.events import DecisionKind, EndReason
from perdure.core.messages import JSON, Usage
from perdure.core.views import Pending
from perdure.runtime.agent import OutputT


class Decision(msgspec.Struct, frozen=True):
    """An answer to a suspended call."""

    decision: DecisionKind
    by: str = ""
    reason: str = ""
    value: JSON = None
    arguments: dict[str, Any] | None = None
    remember: bool | str = False


class RunResult(Generic[OutputT]):
    """How a run stands: ended with a reason, or waiting with what it waits for. `cost_usd` is None if not known."""

    def __init__(
        self,
        run: int,
        reason: EndReason | Literal["waiting"],
        detail: str = "",
        *,
        output: OutputT | None = None,
        usage: Usage = Usage(),  # noqa: B008 - frozen
        cost_usd: float | None = 0.0,
        turns: int = 0,
        pending: tuple[Pending, ...] = (),
    ) -> None:
        self.run = run
        self.reason: EndReason | Literal["waiting"] = reason
        self.detail = detail
        self.usage = usage
        self.cost_usd = cost_usd
        self.turns = turns
        self.pending = pending
        self._output = output

    @property
    def output(self) -> OutputT:
        """The answer; raises RunIncomplete unless the run completed."""
        if self.reason != "completed":
            detail = f": {self.detail.rstrip('.')}" if self.detail else ""
            what = "waits for a decision; answer result.pending" if self.pending else f"is {self.reason}{detail}"
            raise RunIncomplete(f"Run {self.run} has no output: it {what}.", self)
        return self._output  # pyright: ignore[reportReturnType] - completed, so it is there

    @property
    def last_value(self) -> object:
        """What the model said last, where a run failed because it never fitted the output type."""
        return self._output if self.reason == "failed" else None

    def __repr__(self) -> str:
        more = f", detail={self.detail!r}" if self.detail else ""
        more += f", pending={len(self.pending)}" if self.pending else ""
        more += f", output={self._output!r}" if self.reason == "completed" else ""
        return f"RunResult(run={self.run}, reason={self.reason!r}{more}, turns={self.turns})"

"""Run: an awaitable handle on the work for one input. It holds nothing but where to look in the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import Any, Generic

from perdure.core.deltas import AttemptDiscarded, DeltasDropped, TextDelta
from perdure.core.errors import Refused
from perdure.core.events import InputAccepted, InputChanged, ModelResponded, RunEnded, Spent
from perdure.core.state import RunSummary, SessionState
from perdure.core.views import Pending
from perdure.ports import Item, Record
from perdure.runtime.agent import OutputT
from perdure.runtime.family import pending_in, until_still
from perdure.runtime.family_stream import follow_family
from perdure.runtime.host import Host
from perdure.runtime.log import SessionLog
from perdure.runtime.results import RunResult
from perdure.runtime.spending import spent_below


class Run(Generic[OutputT]):
    """Needs no consumer: the run goes on whether or not anybody awaits or streams it."""

    def __init__(self, host: Host, log: SessionLog, input: int, *, after: int = 0) -> None:
        self._host = host
        self._log = log
        self._input = input
        self._after = after

    @property
    def input(self) -> int:
        return self._input

    @property
    def run(self) -> int | None:
        """The run's number in its session, once it has started."""
        return self._log.state.taken.get(self._input) or None

    def __await__(self) -> Generator[Any, None, RunResult[OutputT]]:
        return self._settled().__await__()

    async def stream(self) -> AsyncIterator[Item]:
        """Records and deltas of this run, in order, and what its sub-agents do meanwhile; ends with it."""
        is_open = False
        async for item in follow_family(self._host, self._host.world.store, self._log, self._after, self._after):
            if not isinstance(item, Record):
                if is_open:
                    yield item
                continue
            is_open = item.run != 0 and item.run == self.run
            if is_open or (isinstance(item.event, InputAccepted) and item.event.input == self._input):
                yield item
            match item.event:
                case RunEnded() if is_open:
                    return
                case InputChanged(input=number, retracted=True) if number == self._input:
                    yield item
                    return
                case _:
                    pass

    async def text(self) -> AsyncIterator[str]:
        """The answer's text as it comes; what was not seen in pieces comes as soon as its turn is answered."""
        shown, in_step = "", True
        async for item in self.stream():
            match item:
                case TextDelta(text=text) if in_step:
                    shown += text
                    yield text
                case DeltasDropped() | AttemptDiscarded():
                    in_step = False
                case Record(event=ModelResponded(message=message)):
                    if rest := message.text.removeprefix(shown):
                        yield rest
                    shown, in_step = "", True
                case _:
                    pass

    async def _settled(self) -> RunResult[OutputT]:
        # Behind a run that waits, a queued input waits with it.
        await until_still(self._host, self._log, self._is_over)
        state = self._log.state
        if self._is_over(state):
            return self._result(state, (), Spent())
        pending = await pending_in(self._host, state)
        return self._result(state, pending, await spent_below(self._host.load, state))

    def _is_over(self, state: SessionState) -> bool:
        number = state.taken.get(self._input)
        return number is not None and number <= len(state.ended)

    def _result(self, state: SessionState, pending: tuple[Pending, ...], below: Spent) -> RunResult[OutputT]:
        number = state.taken.get(self._input)
        if number == 0:
            raise Refused(f"Input {self._input} was retracted before a run took it; send it again if it is wanted.")
        if number is not None and number <= len(state.ended):
            return result_of(self._host, state, state.ended[number - 1])
        run = state.run
        assert run is not None
        return RunResult(
            number or 0,
            "waiting",
            usage=run.usage + below.usage,
            cost_usd=run.cost_usd + below.cost_usd if run.is_priced and below.cost_usd is not None else None,
            turns=run.turn,
            pending=pending,
        )


def result_of(host: Host, state: SessionState, ended: RunSummary) -> RunResult[Any]:
    """How a run ended, as callers read it."""
    return RunResult(
        ended.run,
        ended.reason,
        ended.detail,
        output=host.decode_output(state, ended),
        usage=ended.usage,
        cost_usd=ended.cost_usd if ended.is_priced else None,
        turns=ended.turns,
    )

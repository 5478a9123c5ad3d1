"""The agent that many clients speak to: every word of its answers says which input it is for, and its place in it.

Loaded by `perdure worker`; what it does is a function of the conversation alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from itertools import count

from perdure import Agent, Limits, TextDelta, tool
from perdure.core.deltas import ModelDelta
from perdure.core.messages import Text, ToolCall, Usage, UserMessage
from perdure.ports import ModelRequest, ModelResponse

WORDS = 8
PAUSE = float(os.environ.get("PERDURE_TRIAL_PAUSE", "0.02"))

_ids = count(1)


class Teller:
    """An input is `say KEY`, `look KEY` or `pay KEY`: the last two call the tool of that name first."""

    name = "teller"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        last = request.messages[-1]
        asked = next(message for message in reversed(request.messages) if isinstance(message, UserMessage))
        assert isinstance(asked.parts[0], Text)
        what, _, key = asked.parts[0].text.partition(" ")
        if last is asked and what in ("look", "pay"):
            await asyncio.sleep(PAUSE)
            yield ModelResponse((ToolCall(0, what, f'{{"item":"{key}"}}', id=f"id-{next(_ids)}"),))
            return
        words = [f"{key}:{number} " for number in range(WORDS)]
        for word in words:
            yield TextDelta(word)
            await asyncio.sleep(PAUSE)
        yield ModelResponse((Text("".join(words)),))

    def cost(self, usage: Usage) -> float | None:
        return None


@tool(effect="read")
async def look(item: str) -> str:
    """Looks something up."""
    await asyncio.sleep(PAUSE)
    return f"seen {item}"


@tool(effect="idempotent", ask=True)
async def pay(item: str) -> str:
    """Pays, if somebody allows it."""
    await asyncio.sleep(PAUSE)
    return f"paid {item}"


teller = Agent(name="teller", instructions="You serve.", model=Teller(), tools=[look, pay], limits=Limits(turns=None))

"""An agent whose approvals expire and whose triggers fire: loaded by `perdure worker` in the tests of timers."""

from __future__ import annotations

import os
from typing import Any

from perdure import Agent, tool
from perdure.core.messages import Text, UserMessage
from perdure.ports import ModelRequest
from perdure.testing import ScriptedModel, call

EXPIRES = float(os.environ.get("PERDURE_TRIAL_EXPIRES", "5"))


@tool(ask=True, expires=EXPIRES, on_expiry="deny")
async def pay(cents: int) -> str:
    """Pays, if somebody allows it in time."""
    return f"paid {cents}"


def answer(request: ModelRequest) -> Any:
    match request.messages[-1]:
        case UserMessage(parts=(Text(text="pay"),)):
            return [call("pay", cents=5)]
        case _:
            return "done"


punctual = Agent(name="punctual", model=ScriptedModel(answer), tools=[pay])

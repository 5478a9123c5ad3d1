"""send_message: an agent speaks to another session; the message leaves when the call's outcome is durable."""

from __future__ import annotations

from typing import Any

from perdure.core.errors import Refused, ToolError, UsageError
from perdure.runtime.context import ToolContext
from perdure.runtime.tools import Tool, tool


async def _send(to: str, text: str, ctx: ToolContext[Any, Any]) -> str:
    """Send a message to another agent. It arrives once; an answer, if there is one, comes as a message later.

    to: "parent" for the agent that gave you your task, "child NAME" for one that you started, or a session's id
    text: what to say
    """
    try:
        ctx.send(to, text)
    except (Refused, UsageError) as error:
        raise ToolError(str(error)) from None
    return f"The message to {to} is on its way."


def send_message(*, name: str = "send_message") -> Tool[..., Any]:
    """The tool. Nothing is sent before the outcome is committed, so that it may be run again after a crash."""
    return tool(_send, name=name, effect="idempotent")

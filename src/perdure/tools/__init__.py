"""Toolsets, tools whose calls somebody else carries out, and tools that are made for each run."""

from perdure.ports import Transaction
from perdure.runtime.per_run import per_run
from perdure.tools.ask_user import ask_user
from perdure.tools.declared import external, frontend
from perdure.tools.messages import send_message

__all__ = ["Transaction", "ask_user", "external", "frontend", "per_run", "send_message"]

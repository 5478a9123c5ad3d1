"""Toolsets, and tools whose calls somebody else carries out."""

from perdure.ports import Transaction
from perdure.tools.ask_user import ask_user
from perdure.tools.declared import external, frontend
from perdure.tools.messages import send_message

__all__ = ["Transaction", "ask_user", "external", "frontend", "send_message"]

"""Triggers: what sends a session inputs by itself, at times or when files change."""

from perdure.core.events import TriggerSet
from perdure.core.specs import At, Cron, Every, Files
from perdure.runtime.triggers import TriggerRow

__all__ = ["At", "Cron", "Every", "Files", "TriggerRow", "TriggerSet"]

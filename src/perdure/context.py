"""What an agent reads beside the conversation, how much of the past, how it takes inputs and when it stops."""

from perdure.core.specs import Inputs, Reminder, StopWhen, Window
from perdure.runtime.compaction import Compaction, ToCompact
from perdure.runtime.surroundings import ContextMessage
from perdure.runtime.tokens import tokenizer

__all__ = ["Compaction", "ContextMessage", "Inputs", "Reminder", "StopWhen", "ToCompact", "Window", "tokenizer"]

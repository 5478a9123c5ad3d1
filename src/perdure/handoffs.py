"""Hand-offs with more to say than an agent's name, and filters for what the next agent reads."""

from perdure.runtime.handoffs import Filter, Handoff, handoff, inputs_only, last_messages, without_calls

__all__ = ["Filter", "Handoff", "handoff", "inputs_only", "last_messages", "without_calls"]

"""The ends of calls that need no tool: what the log keeps and what the model is told, truthfully."""

from __future__ import annotations

from perdure.core.calls import Call
from perdure.core.codec import encode_json
from perdure.core.events import CallEnded
from perdure.core.messages import Outcome, Text

EXPIRY = "expiry"
"""Who decides when nobody else did in time."""


def end_call(call: Call, outcome: Outcome, text: str, *, in_doubt: bool = False) -> CallEnded:
    return CallEnded(call.ordinal, outcome, (Text(text),), in_doubt=in_doubt)


def end_refused(call: Call) -> CallEnded:
    """A rule or a person said no; of a call in doubt, a person said that it failed, or nobody spoke in time."""
    decision = call.decision
    if decision is None or decision.decision != "deny":
        return end_call(call, "denied", f"The call is not allowed ({call.rule}): {call.reason}")
    # Only of a call in doubt does a denial say that it failed; the repetition of one may be denied for any reason.
    if call.attempts and (decision.by == EXPIRY or call.asked_as != "unknown"):
        return end_unknown(call)
    who = f" by {decision.by}" if decision.by else ""
    why = f": {decision.reason.rstrip('.')}." if decision.reason else "."
    if call.attempts:
        return end_call(call, "error", f"The call failed, as stated{who}{why}")
    return end_call(call, "denied", f"The call was denied{who}{why} It was not carried out.")


def end_answered(call: Call) -> CallEnded:
    """A decision brought the result."""
    value = call.decision.value if call.decision else None
    return end_call(call, "ok", value if isinstance(value, str) else encode_json(value).decode())


def end_unknown(call: Call) -> CallEnded:
    text = "It is not known whether this call took effect: the process died while it was under way."
    return end_call(call, "unknown", text, in_doubt=True)

"""What the log notes about models, triggers and drivers, in words for people."""

from __future__ import annotations

from perdure.cli.words import shorten, show_cost, show_seconds
from perdure.core.codec import encode_json
from perdure.core.events import Noted

LONGEST = 300
BROKE_OFF = "the answer broke off"
PLANS = {
    "kept": f"{BROKE_OFF}; the calls that were whole are kept",
    "continued": f"{BROKE_OFF}; the model goes on from where it was",
    "restarted": f"{BROKE_OFF}; the model begins again",
}


def show_note(event: Noted) -> tuple[str, str, str]:
    """Mark, text and style of a line."""
    match event:
        case Noted(kind="model_attempt", data={"attempt": attempt, "kind": kind, "wait": wait}):
            then = "that was its last try" if wait is None else f"again in {show_seconds(wait)}"
            return "↻", f"the model failed ({kind}, attempt {attempt}): {then}", "yellow"
        case Noted(kind="model_wait", data={"model": model, "wait": wait, "circuit": circuit}):
            why = "it has failed too often" if circuit else "the rate limit is shared"
            return "…", f"waits {show_seconds(wait)} for {model}: {why}", "yellow"
        case Noted(kind="model_switch", data={"model": model, "instead_of": other}):
            return "↻", f"{model} is asked instead of {other}", "yellow"
        case Noted(kind="model_recovery", data={"plan": plan}):
            return "↻", PLANS.get(plan, f"{BROKE_OFF}; {plan}"), "magenta"
        case Noted(kind="price_unknown", data={"model": model, "limit": limit}):
            return "!", f"nobody knows the price of {model}: the limit of {show_cost(limit)} does not hold", "yellow"
        case Noted(kind="agent_changed", data={"changes": changes}):
            return "!", f"the agent has changed since this run began: {shorten('; '.join(changes), LONGEST)}", "yellow"
        case Noted(kind="tag", data={"name": name, "seq": seq}):
            return "⚑", f"record {seq} is tagged {name}", "dim"
        case Noted(kind="trigger_failed", data={"trigger": name, "detail": detail}):
            return "!", f"the trigger {name} failed: {shorten(detail, LONGEST)}", "yellow"
        case Noted(kind="trigger_left_out", data={"trigger": name, "detail": detail}):
            return "!", f"the trigger {name} left out what was missed: {shorten(detail, LONGEST)}", "yellow"
        case Noted(kind="hook_failed", data={"hook": hook, "detail": detail}):
            return "!", f"{hook} failed: {detail}", "yellow"
        case Noted(kind="driver_died", data={"owner": owner, "deaths": int(deaths)}):
            if deaths == 1:
                return "·", f"the driver {shorten(owner, LONGEST)} died", "dim"
            return "!", f"the driver {shorten(owner, LONGEST)} died, number {deaths} in a row", "yellow"
        case Noted(kind="quarantined", data={"deaths": int(deaths)}):
            return "!", f"quarantined: {deaths} drivers in a row have died of it; mend it, then resume it", "red"
        case Noted(kind=kind, data=data):
            return "·", f"{kind} {shorten(encode_json(data).decode(), LONGEST)}", "dim"

"""What extends an agent: hooks, guardrails, plug-ins, state keys and directives, for `Agent(…)` and `Runtime(…)`."""

from perdure.core.specs import Overrides
from perdure.runtime.directives import Block, Emit, Result, Retry, Schedule, Stop
from perdure.runtime.guardrails import Guardrail
from perdure.runtime.hooks import Hooks
from perdure.runtime.middleware import Middleware
from perdure.runtime.moments import (
    AnswerMoment,
    CallMoment,
    CompactionMoment,
    EndMoment,
    ErrorMoment,
    Here,
    InputMoment,
    RequestMoment,
    ResponseMoment,
    ResultMoment,
    RunEndMoment,
    RunMoment,
    SessionMoment,
    TurnMoment,
)
from perdure.runtime.plugins import Plugin
from perdure.runtime.wishes import StateKey

__all__ = [
    "AnswerMoment",
    "Block",
    "CallMoment",
    "CompactionMoment",
    "Emit",
    "EndMoment",
    "ErrorMoment",
    "Guardrail",
    "Here",
    "Hooks",
    "InputMoment",
    "Middleware",
    "Overrides",
    "Plugin",
    "RequestMoment",
    "ResponseMoment",
    "Result",
    "ResultMoment",
    "Retry",
    "RunEndMoment",
    "RunMoment",
    "Schedule",
    "SessionMoment",
    "StateKey",
    "Stop",
    "TurnMoment",
]

"""What extends an agent: hooks, guardrails, plug-ins, state keys, directives, and the actions that middleware sees."""

from perdure.core.actions import (
    CallModel,
    CheckCall,
    CompactHistory,
    EndOperation,
    EndRun,
    RunTool,
    SwitchAgent,
    VetInput,
)
from perdure.core.specs import NextTurn, Overrides
from perdure.runtime.directives import Block, Emit, Result, Retry, Schedule, Send, StartChild, Stop, StopChild
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
    "CallModel",
    "CallMoment",
    "CheckCall",
    "CompactHistory",
    "CompactionMoment",
    "Emit",
    "EndMoment",
    "EndOperation",
    "EndRun",
    "ErrorMoment",
    "Guardrail",
    "Here",
    "Hooks",
    "InputMoment",
    "Middleware",
    "NextTurn",
    "Overrides",
    "Plugin",
    "RequestMoment",
    "ResponseMoment",
    "Result",
    "ResultMoment",
    "Retry",
    "RunEndMoment",
    "RunMoment",
    "RunTool",
    "Schedule",
    "Send",
    "SessionMoment",
    "StartChild",
    "StateKey",
    "Stop",
    "StopChild",
    "SwitchAgent",
    "TurnMoment",
    "VetInput",
]

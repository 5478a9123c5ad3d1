"""Perdure: a durable agent runtime. A session is a log of facts; kill the process and go on from exactly there."""

from perdure.core.deltas import DeltasDropped, TextDelta, ThinkingDelta, ToolEmitted, ToolProgressed
from perdure.core.errors import (
    Conflict,
    ModelError,
    NotFound,
    PerdureError,
    Refused,
    RunIncomplete,
    StoreError,
    ToolError,
    UsageError,
)
from perdure.core.specs import Guards, Limits, ModelSettings
from perdure.core.views import Pending
from perdure.ports import Record
from perdure.runtime.agent import Agent
from perdure.runtime.context import ToolContext
from perdure.runtime.media import Document, Image
from perdure.runtime.policy import Policy
from perdure.runtime.results import Decision, RunResult
from perdure.runtime.run import Run
from perdure.runtime.session import Session
from perdure.runtime.tools import tool
from perdure.wiring import Runtime

__all__ = [
    "Agent",
    "Conflict",
    "Decision",
    "DeltasDropped",
    "Document",
    "Guards",
    "Image",
    "Limits",
    "ModelError",
    "ModelSettings",
    "NotFound",
    "Pending",
    "PerdureError",
    "Policy",
    "Record",
    "Refused",
    "Run",
    "RunIncomplete",
    "RunResult",
    "Runtime",
    "Session",
    "StoreError",
    "TextDelta",
    "ThinkingDelta",
    "ToolContext",
    "ToolEmitted",
    "ToolError",
    "ToolProgressed",
    "UsageError",
    "tool",
]

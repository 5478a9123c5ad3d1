"""Tests without mocks: a scripted model, a clock to turn by hand, crashes on demand and the contract suites."""

from perdure.testing.clock import ManualClock
from perdure.testing.engine_contract import check_engine
from perdure.testing.faults import FaultPoints, crash_at, fault_point
from perdure.testing.model_contract import check_model
from perdure.testing.network import no_network
from perdure.testing.provider import Provider
from perdure.testing.replay import Difference, Replayed, check_replay, replay
from perdure.testing.replies import Reply, call
from perdure.testing.scripted import ScriptedModel
from perdure.testing.store_contract import check_store
from perdure.testing.sweep import Crash, crash_sweep

__all__ = [
    "Crash",
    "Difference",
    "FaultPoints",
    "ManualClock",
    "Provider",
    "Replayed",
    "Reply",
    "ScriptedModel",
    "call",
    "check_engine",
    "check_model",
    "check_replay",
    "check_store",
    "crash_at",
    "crash_sweep",
    "fault_point",
    "no_network",
    "replay",
]

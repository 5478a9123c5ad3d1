"""The public surface is a tested list: a name that comes or goes changes this file, on purpose."""

from __future__ import annotations

import importlib.resources
import inspect
import subprocess
import sys
from typing import get_args

import perdure
import perdure.events
import perdure.testing
from perdure.core.events import Event

SURFACE = [
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

KINDS = [
    "AgentPinned",
    "CallAdvanced",
    "CallChecked",
    "CallDecided",
    "CallEnded",
    "CallStarted",
    "CallSuspended",
    "HistoryCompacted",
    "HistoryCut",
    "HistoryImported",
    "InputAccepted",
    "InputChanged",
    "MessageSent",
    "MessageSettled",
    "ModelCalled",
    "ModelFailed",
    "ModelResponded",
    "Noted",
    "RunEnded",
    "RunResumed",
    "RunStarted",
    "SessionOpened",
    "SettingsChanged",
    "StateChanged",
    "StopRequested",
    "TriggerSet",
]

TESTING = {
    "ManualClock",
    "Reply",
    "ScriptedModel",
    "call",
    "check_store",
    "crash_at",
    "crash_sweep",
    "no_network",
}

SESSION = {
    "agent",
    "cancel",
    "decide",
    "delete",
    "fork",
    "history",
    "id",
    "pending",
    "records",
    "resume",
    "run",
    "send",
    "set_model",
    "start",
    "state",
    "stop",
    "stream",
    "tenant",
    "uid",
    "usage",
}

RESULT = {"cost_usd", "detail", "last_value", "output", "pending", "reason", "run", "turns", "usage"}


def test_the_package_exports_exactly_this() -> None:
    assert perdure.__all__ == SURFACE
    assert sorted(SURFACE) == SURFACE
    assert len(SURFACE) <= 30
    for name in SURFACE:
        assert getattr(perdure, name) is not None


def test_a_star_import_brings_nothing_else() -> None:
    names: dict[str, object] = {}
    exec("from perdure import *", names)
    assert sorted(set(names) - {"__builtins__"}) == SURFACE


def test_events_are_exactly_the_kinds_of_the_log() -> None:
    assert sorted(kind.__name__ for kind in get_args(Event)) == KINDS
    assert perdure.events.__all__ == sorted([*KINDS, "Event", "FromChild"])
    assert perdure.events.Event == Event
    for kind in get_args(Event):
        assert getattr(perdure.events, kind.__name__) is kind


def test_what_tests_need_is_exported() -> None:
    assert set(perdure.testing.__all__) >= TESTING
    assert perdure.testing.__all__ == sorted(perdure.testing.__all__)
    for name in perdure.testing.__all__:
        assert getattr(perdure.testing, name) is not None


def test_testing_is_free_of_pytest() -> None:
    code = (
        "import perdure.testing, sys; print([m for m in sys.modules if m.partition('.')[0] in ('pytest', '_pytest')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_sessions_and_results_have_the_words_of_the_surface() -> None:
    public = {name for name in vars(perdure.Session) if not name.startswith("_")}
    assert public >= SESSION
    result = perdure.RunResult(1, "completed", output="x")
    assert {name for name in dir(result) if not name.startswith("_")} == RESULT


def test_pending_has_what_a_person_needs() -> None:
    fields = ("id", "kind", "session", "call", "tool", "arguments", "prompt", "expires_at")
    assert perdure.Pending.__struct_fields__ == fields


def test_everything_public_says_what_it_is() -> None:
    for name in SURFACE:
        thing = getattr(perdure, name)
        assert inspect.getdoc(thing), f"{name} has no docstring"


def test_errors_derive_from_one() -> None:
    errors = [getattr(perdure, name) for name in SURFACE if inspect.isclass(getattr(perdure, name))]
    for error in errors:
        if issubclass(error, Exception):
            assert issubclass(error, perdure.PerdureError)


def test_the_package_is_typed() -> None:
    assert importlib.resources.files("perdure").joinpath("py.typed").is_file()


def test_importing_it_loads_no_more_than_the_core_and_the_runtime() -> None:
    code = """
import sys
before = set(sys.modules)
import perdure
heavy = ("pydantic", "apsw", "sqlite3", "http", "urllib.request", "docstring_parser", "perdure.stores",
         "perdure.testing", "perdure.models", "perdure.server", "perdure.cli", "multiprocessing", "unittest")
print([name for name in heavy if name in sys.modules and name not in before])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"

"""Sub-agents at the command line: what they wait for is asked, what they used counted, who they are listed."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import Command

AGENTS = '''
from perdure import Agent, tool
from perdure.testing import ScriptedModel, call

@tool(ask=True)
async def pay(order: str) -> str:
    """Pay."""
    return f"paid {order}"

leaf = Agent(name="leaf", model=ScriptedModel([call("pay", order="7"), "leaf is done"]), tools=[pay])
mid = Agent(name="mid", model=ScriptedModel([call("leaf", input="pay 7"), "mid is done"]), tools=[leaf])
top = Agent(name="top", model=ScriptedModel([call("mid", input="go"), "All done."]), tools=[mid])
'''


def test_a_run_with_sub_agents(perdure: Command) -> None:
    Path(perdure.folder, "family.py").write_text(AGENTS)
    shown = perdure("run", "go", "--agent", "family.py:top", "--session", "s", "--yes")
    assert "mid works on it in session s.mid-1" in shown
    assert "completed · 2 turns · 90 tokens" in shown
    waiting = perdure("run", "go", "--agent", "family.py:top", "--session", "t", code=3)
    assert "waiting for 1 decision" in waiting
    listed = perdure("pending")
    assert "session t.mid-1.leaf-1" in listed
    decision = next(line for line in listed.splitlines() if "perdure decide" in line).split()[2]
    assert "perdure resume t --agent" in perdure("decide", decision, "approve")
    alone = perdure.call("resume", "t.mid-1.leaf-1", "--agent", "family.py:leaf", code=2).stderr
    assert "go on with the one that it works for: perdure resume t" in alone
    assert "completed" in perdure("resume", "t", "--agent", "family.py:top")
    assert "session t.mid-1 · agent mid · " in perdure("sessions", "show", "t.mid-1")

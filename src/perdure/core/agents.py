"""Which agent a session has, and what an open run has of it: pinned, switched, or set from outside.

Rule: what a run has spent and kept so far is the run's, whoever goes on with it.
"""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.events import AgentPinned, SettingsChanged, Switched
from perdure.core.history import heard
from perdure.core.messages import Text, UserMessage
from perdure.core.state import SessionState
from perdure.core.window import overhead_of


def pin_agent(state: SessionState, event: AgentPinned) -> SessionState:
    overhead = overhead_of(event.spec)
    tokens = max(0, state.context_tokens + overhead - state.overhead_tokens)
    state = replace(state, spec=event.spec, spec_digest=event.digest, overhead_tokens=overhead, context_tokens=tokens)
    return state if event.switched is None else _switch(state, event.spec.name, event.switched)


def _switch(state: SessionState, agent: str, to: Switched) -> SessionState:
    """Another agent goes on with the run; what the run has spent and kept so far is the run's."""
    run = state.run
    if run is None:
        return state
    run = replace(run, wanted="", next=replace(run.next, agent=""))
    if to.error:
        return heard(replace(state, run=run), UserMessage((Text(to.error),)))
    run = replace(
        run, agent=agent, model=to.model, settings=to.settings, output=to.output, tools=to.tools, window=to.window
    )
    # Who was chosen for one run hands over in that run alone.
    return replace(state, run=run, agent=state.agent if run.overrides.agent else agent)


def change_settings(state: SessionState, event: SettingsChanged) -> SessionState:
    """An open run goes on with the new model at its next turn, whatever it was started with; a title changes no run."""
    run = state.run
    is_other = event.model != state.model or event.settings != state.settings
    if run is not None and state.spec is not None and is_other:
        settings = state.spec.settings.merged(event.settings)
        given = replace(run.overrides, model=None, settings=None)
        run = replace(run, model=event.model or state.spec.model, settings=settings, overrides=given)
    if run is not None and event.agent and not run.overrides.agent:
        run = replace(run, wanted="" if event.agent == run.agent else event.agent)
    title = state.title if event.title is None else event.title
    agent = event.agent or state.agent
    state = replace(state, run=run, model=event.model, settings=event.settings, title=title, agent=agent)
    return state if event.priority is None else replace(state, priority=event.priority)

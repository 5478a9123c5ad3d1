"""Agent: what the programmer describes; Binding: the same, compiled to plain data (the spec) plus callables.

Rule: only the spec reaches the log; a binding comes from code alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Unpack, cast

import msgspec

from perdure.core.codec import digest_of, encode_json
from perdure.core.errors import UsageError
from perdure.core.events import OrphanPolicy
from perdure.core.specs import (
    AS_USUAL,
    AgentSpec,
    Guards,
    Inputs,
    Limits,
    ModelSettings,
    Reminder,
    StopWhen,
    ToolErrors,
    ToolSpec,
    Window,
)
from perdure.ports import Model
from perdure.runtime.compaction import Compaction
from perdure.runtime.deferred import defer, find_tools
from perdure.runtime.guardrails import Guardrail
from perdure.runtime.handoffs import Handoff, hand_off_tools, targets_of
from perdure.runtime.hooks import Hooks
from perdure.runtime.middleware import Middleware
from perdure.runtime.plugins import Assembled, Own, Plugin, ToolItem, Words, assemble
from perdure.runtime.policy import Policy
from perdure.runtime.recourse import OnModelError
from perdure.runtime.schema import Codec, codec_of
from perdure.runtime.spill import READ_OUTPUT, read_output
from perdure.runtime.subagents import ChildKind, SubAgent, ask, ask_by_name
from perdure.runtime.surroundings import ContextSource
from perdure.runtime.tools import Tool, ToolOptions, check_names

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    OutputT = TypeVar("OutputT", default=str)
else:
    from typing import TypeVar

    OutputT = TypeVar("OutputT")

Instructions = Words
MAX_NESTED = 8
ModelChoice = str | Model | Sequence[str | Model]


@dataclass(frozen=True, kw_only=True)
class Agent(Generic[OutputT]):
    """A model with instructions, tools and limits. `model` may be a list: the first, then fallbacks.

    Tools beyond `defer_above` bytes of schemas stand behind a search. `context` is said beside the conversation.
    `handoffs` are agents, or names of agents, that may take over.
    """

    name: str
    instructions: Instructions = ""
    model: ModelChoice = ""
    tools: Sequence[ToolItem] = ()
    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    output: type[OutputT] | Sequence[type[OutputT]] | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    concurrency: int | None = None
    middleware: Sequence[Middleware] = ()
    tool_errors: ToolErrors = field(default_factory=ToolErrors)
    guards: Guards = field(default_factory=Guards)
    window: Window = field(default_factory=Window)
    compaction: Compaction = field(default_factory=Compaction)
    reminders: Sequence[Reminder] = ()
    stop_when: Sequence[StopWhen] = ()
    context: Sequence[ContextSource] = ()
    defer_above: int | None = 60_000
    on_model_error: OnModelError | None = None
    hooks: Sequence[Hooks] = ()
    guardrails: Sequence[Guardrail] = ()
    plugins: Sequence[Plugin] = ()
    inputs: Inputs = AS_USUAL
    handoffs: Sequence[Agent[Any] | Handoff | str] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.name), str) or not self.name.strip():
            raise UsageError("An agent needs a name: Agent(name='clerk', …).")
        if not isinstance(self.instructions, str) and not callable(self.instructions):
            raise UsageError(f"Agent {self.name!r}: instructions are a text or a function, not {self.instructions!r}.")
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"Agent {self.name!r}: concurrency={self.concurrency}; take at least 1, or None.")
        for name, kind in _LISTS.items():
            self._check_list(name, kind)
        for name, kind in _OPTIONS.items():
            if not isinstance(getattr(self, name), kind):
                raise UsageError(f"Agent {self.name!r}: {name} takes {kind.__name__}(…), not {getattr(self, name)!r}.")
        targets_of(self.name, self.handoffs)
        self.window.check()
        self.compaction.check()
        self.inputs.check()
        for condition in (*self.stop_when, *self.reminders):
            condition.check()

    def as_tool(
        self,
        *,
        child: ChildKind = "new",
        limits: Limits | None = None,
        orphan: OrphanPolicy = "end",
        hooks: bool = False,
        tools: bool = False,
        **options: Unpack[ToolOptions],
    ) -> Tool[..., Any]:
        """A tool that hands a task to this agent, which works in a session of its own; see SubAgent, ToolOptions.

        `timeout` is the most that a call may take, whatever the child does; limits=Limits(silence=…) ends one that
        shows no sign of life.
        """
        unknown = options.keys() - _AGENT_OPTIONS
        if unknown:
            raise UsageError(f"{self.name}.as_tool has no option {min(unknown)!r}; take {', '.join(_AGENT_OPTIONS)}.")
        words = f"Hand a task to the agent {self.name}, which works on it by itself and answers once."
        given: dict[str, Any] = {"name": self.name, "description": words, **options}
        return Tool(
            function=ask_by_name if child == "named" else ask,
            effect="idempotent",
            declared_effect=True,
            kind="agent",
            sub_agent=SubAgent(self, child, limits, orphan, hooks, tools),
            **given,
        )

    def _check_list(self, name: str, kind: type[Any] | None) -> None:
        """A list of such things: a single one, or something else in it, would be noticed far too late."""
        given = getattr(self, name)
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise UsageError(f"Agent {self.name!r}: {name} is a list; write {name}=[…].")
        for item in cast(Sequence[object], given):
            if kind is not None and not isinstance(item, kind):
                raise UsageError(f"Agent {self.name!r}: {name} takes {kind.__name__}(…), not {item!r}.")


_LISTS: dict[str, type[Any] | None] = {
    "hooks": Hooks,
    "guardrails": Guardrail,
    "plugins": Plugin,
    "reminders": Reminder,
    "stop_when": StopWhen,
    "context": None,
    "middleware": None,
    "handoffs": None,
}
_AGENT_OPTIONS = ("name", "description", "timeout", "ask", "sequential", "background", "hidden", "deferred")
_OPTIONS: dict[str, type[Any]] = {
    "window": Window,
    "compaction": Compaction,
    "limits": Limits,
    "settings": ModelSettings,
    "policy": Policy,
    "tool_errors": ToolErrors,
    "guards": Guards,
    "inputs": Inputs,
}


@dataclass(frozen=True)
class Binding:
    """An agent ready to be driven; `data` has the codec of each tool that asks for typed session data.

    `summarisers` are the models of its compactions, if those have any of their own. `offered` are the tools that the
    model is shown: not those that the policy denies whatever their arguments. `sub_agents` are those behind its tools.
    """

    agent: Agent[Any]
    spec: AgentSpec
    digest: str
    tools: dict[str, Tool[..., Any]]
    data: dict[str, Codec]
    models: tuple[Model, ...]
    output: Codec | None
    parts: Assembled
    offered: tuple[ToolSpec, ...]
    summarisers: tuple[Model, ...] = ()
    sub_agents: dict[str, Agent[Any]] = field(default_factory=dict[str, Agent[Any]])
    handoffs: dict[str, Handoff] = field(default_factory=dict[str, Handoff])

    @cached_property
    def hides(self) -> bool:
        """Whether there are tools that the model does not see in every turn."""
        return any(tool.hidden or tool.deferred for tool in self.offered)

    @cached_property
    def conditional(self) -> bool:
        """Whether there are tools that ask for each turn whether the model sees them."""
        return any(tool.when is not None for tool in self.tools.values())


def bind(
    agent: Agent[Any], resolve: Callable[[str], Model], override: Model | None, hooks: Sequence[Hooks] = ()
) -> Binding:
    """Compiles an agent; wrong tools, types and models are told here, before anything runs.

    `hooks` are those of the Runtime.
    """
    handoffs = targets_of(agent.name, agent.handoffs)
    given = [*hand_off_tools(handoffs), *agent.tools]
    own = Own(agent.name, given, agent.hooks, agent.guardrails, agent.instructions)
    parts = assemble(own, agent.plugins, hooks)
    tools = parts.tools
    models = (override,) if override is not None else _models(agent, resolve)
    specs = defer([tool.spec for tool in tools], agent.defer_above)
    if any(spec.deferred for spec in specs):
        tools = [find_tools, *tools]
        specs = (find_tools.spec, *specs)
        check_names(tools)
    output = codec_of(agent.output) if agent.output is not None and agent.output is not str else None
    spec = AgentSpec(
        name=agent.name,
        model=models[0].name,
        instructions="\n\n".join(part for part in parts.instructions if isinstance(part, str)),
        tools=specs,
        policy=agent.policy.spec,
        limits=agent.limits,
        settings=agent.settings,
        output=output.schema if output else None,
        concurrency=agent.concurrency,
        tool_errors=agent.tool_errors,
        guards=agent.guards,
        window=agent.window,
        reminders=tuple(agent.reminders),
        stop_when=tuple(agent.stop_when),
        vets_input=parts.vets_input,
        inputs=agent.inputs,
    )
    return Binding(
        agent=agent,
        spec=spec,
        digest=digest_of(_readable(spec)),
        tools={READ_OUTPUT: read_output, **{tool.name: tool for tool in tools}},
        data={tool.name: tool.data_codec for tool in tools if tool.data_codec is not None},
        models=models,
        output=output,
        parts=parts,
        offered=tuple(tool for tool in spec.tools if not agent.policy.forbids(tool.name)),
        summarisers=_summarisers(agent, resolve) if override is None else (),
        sub_agents={tool.name: _heir(tool.sub_agent, agent) for tool in tools if tool.sub_agent is not None},
        handoffs=handoffs,
    )


def _readable(spec: AgentSpec) -> bytes:
    """The spec as it is written; one with a value of a wrong type would make a log that nobody can read again."""
    written = encode_json(spec)
    try:
        msgspec.json.decode(written, type=AgentSpec)
    except ValueError as error:
        raise UsageError(f"Agent {spec.name!r} has a value of a wrong type: {error}.") from None
    return written


def _heir(sub: SubAgent, parent: Agent[Any]) -> Agent[Any]:
    """The agent of the child; one that inherits code is another agent, and says so in its name."""
    agent = sub.agent
    if not sub.hooks and not sub.tools:
        return agent
    name = f"{agent.name}@{parent.name}"
    if name.count("@") > MAX_NESTED:
        raise UsageError(f"Agent {agent.name!r} inherits from itself; leave hooks= and tools= of as_tool out.")
    hooks, tools = agent.hooks, agent.tools
    if sub.hooks:
        hooks = (*parent.hooks, *agent.hooks)
    if sub.tools:
        own = {_name(item) for item in agent.tools}
        tools = (*agent.tools, *(item for item in parent.tools if _is_function(item) and _name(item) not in own))
    return replace(agent, name=name, hooks=hooks, tools=tools)


def _name(item: Any) -> str:
    return getattr(item, "name", None) or getattr(item, "__name__", "")


def _is_function(item: Any) -> bool:
    return getattr(item, "sub_agent", None) is None and not hasattr(item, "as_tool")


def agents_of(agent: Agent[Any]) -> list[Agent[Any]]:
    """The agents that this one brings along."""
    targets = [target.to for target in targets_of(agent.name, agent.handoffs).values()]
    return [cast("Agent[Any]", target) for target in targets if isinstance(target, Agent)]


def check_data(binding: Binding, id: str, data: object) -> None:
    """The session's data against what the agent's tools ask for, on every load."""
    for tool, codec in binding.data.items():
        try:
            codec.decode(data)
        except ValueError as error:
            raise UsageError(f"The data of session {id!r} does not fit the tool {tool!r}: {error}") from None


def _summarisers(agent: Agent[Any], resolve: Callable[[str], Model]) -> tuple[Model, ...]:
    """An override is for everything that an agent asks a model, its summaries too."""
    chosen = agent.compaction.model
    return () if chosen is None else choose_models(chosen, resolve, f"The compaction of agent {agent.name!r}")


def _models(agent: Agent[Any], resolve: Callable[[str], Model]) -> tuple[Model, ...]:
    return choose_models(agent.model, resolve, f"Agent {agent.name!r}")


def choose_models(choice: ModelChoice, resolve: Callable[[str], Model], who: str) -> tuple[Model, ...]:
    items = choice if isinstance(choice, Sequence) and not isinstance(choice, str) else [choice]
    if not items or not all(items):
        raise UsageError(f"{who} has no model; give it model='provider:name', or --model at the command line.")
    for item in items:
        if not isinstance(item, str) and not callable(getattr(item, "stream", None)):
            raise UsageError(f"{who}: {item!r} is no model; give it model='provider:name' or one of perdure.models.")
    return tuple(resolve(item) if isinstance(item, str) else item for item in items)

"""CheckCall: the arguments against the schema, the preparation of a call that listens, then the policy.

Rule 1: nothing with a lasting effect happens here. Rule 2: what an approval is for is bound by one digest.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, cast

from perdure.core.actions import Action, CheckCall
from perdure.core.calls import Call
from perdure.core.codec import canonical, decode_json, digest_of, encode_json
from perdure.core.deltas import ToolProgressed
from perdure.core.errors import ToolError
from perdure.core.events import CallChecked
from perdure.core.fits import misfit
from perdure.core.specs import ToolSpec
from perdure.core.state import SessionState, agent_of
from perdure.core.versions import changes_of_tool
from perdure.runtime.clock import within
from perdure.runtime.conditions import is_shown
from perdure.runtime.desk import Desk, describe
from perdure.runtime.directives import Fact
from perdure.runtime.flight import Flight
from perdure.runtime.hook_phases import judge_gates, judge_gates_now
from perdure.runtime.moments import CallMoment
from perdure.runtime.plain import to_plain
from perdure.runtime.policy import UNASKED, CallView, Judgement, judge, judge_now, settle_ask, stricter
from perdure.runtime.questions import questions_in, response_schema, show_questions
from perdure.runtime.tools import Tool
from perdure.runtime.wishes import Prepared

BETWEEN_UPDATES = 30.0
LONGEST_LISTENING = 300.0


class Case:
    """A call with arguments that fit, ready to be judged; `tool` is None where a client declared it for its run."""

    __slots__ = ("ask", "digest", "prepared", "spec", "tool", "view")

    def __init__(self, spec: ToolSpec, tool: Tool[..., Any] | None, view: CallView, digest: str) -> None:
        self.spec = spec
        self.tool = tool
        self.view = view
        self.digest = digest
        self.ask = tool.ask if tool is not None else False
        self.prepared: Prepared | None = None


def may_check_early(desk: Desk, action: Action) -> bool:
    """A call that listens shows how far it is: not before what it belongs to."""
    if not isinstance(action, CheckCall):
        return False
    tool = desk.binding.tools.get(action.name)
    return tool is None or not tool.spec.listens


def check_now(desk: Desk, action: CheckCall, after: list[Fact], state: SessionState) -> CallChecked | None:
    """The verdict where no user code has to be awaited; None where it has. Gates may add to the facts `after` it.

    They see the `state` that it is committed behind, with what the gates of the calls before have changed.
    """
    case = _open_case(desk, action)
    if isinstance(case, CallChecked):
        return case
    if case.spec.listens or (case.tool is not None and case.tool.when is not None):
        return None
    if changed := _changed_since(desk, action, case):
        return _checked(desk, action, case, changed)
    try:
        judgement = _judge_now(desk, case, approved=_is_approved(desk, action, case))
    except SystemExit as error:
        # Raised by a predicate here, in the driver, it would end the program and all its sessions.
        return CallChecked(action.call, "deny", "check", describe(error))
    if judgement is not None and desk.hooks.tool_gate:
        gated = judge_gates_now(desk, _moment(desk, action.call, case, judgement, state), judgement, after)
        judgement = None if gated is None else _settled(desk, action, case, gated)
    return None if judgement is None else _checked(desk, action, case, judgement)


async def check_call(desk: Desk, flight: Flight, action: CheckCall) -> CallChecked:
    """The verdict, with the call prepared and the policy's predicates awaited."""
    case = _open_case(desk, action)
    if isinstance(case, CallChecked):
        return case
    if not await is_shown(desk, flight.state or desk.log.state, action.name):
        return _invalid(action, f"The tool {action.name!r} cannot be called now.")
    if case.spec.listens and case.tool is not None:
        try:
            case.prepared = await within(desk.world.clock, LONGEST_LISTENING, _listen(desk, action, case))
        except TimeoutError:
            return _invalid(action, f"{action.name} was not ready in time.")
        except Exception as error:  # noqa: BLE001 - a listen function is user code
            return _invalid(action, f"{action.name} cannot be prepared: {_words(error)}")
    if changed := _changed_since(desk, action, case):
        return _checked(desk, action, case, changed)
    judgement = await _judge(desk, case, approved=_is_approved(desk, action, case))
    if desk.hooks.tool_gate:
        gated = await judge_gates(desk, flight, _moment(desk, action.call, case, judgement, flight.state), judgement)
        judgement = _settled(desk, action, case, gated)
    return _checked(desk, action, case, judgement)


def _judge_now(desk: Desk, case: Case, *, approved: bool) -> Judgement | None:
    """The policy's verdict, and those of all agents above: the strictest counts."""
    remembered, policy = desk.log.state.remembered, desk.binding.agent.policy
    said = judge_now(policy, case, case.view, remembered, case.digest, approved=approved)
    for above in desk.above:
        other = judge_now(above.policy, UNASKED, case.view, remembered, case.digest, approved=approved)
        if said is None or other is None:
            return None
        said = stricter(said, other, above.agent)
    return said


async def _judge(desk: Desk, case: Case, *, approved: bool) -> Judgement:
    remembered, policy = desk.log.state.remembered, desk.binding.agent.policy
    said = await judge(policy, case, case.view, remembered, case.digest, approved=approved)
    for above in desk.above:
        other = await judge(above.policy, UNASKED, case.view, remembered, case.digest, approved=approved)
        said = stricter(said, other, above.agent)
    return said


def _changed_since(desk: Desk, action: CheckCall, case: Case) -> Judgement | None:
    """A question, where the tool is not the one that the run began with; who approved it has seen that."""
    state = desk.log.state
    if action.approved or state.spec is None:
        return None
    known = state.run.tools if state.run else ()
    if state.spec_digest != desk.binding.digest:
        known = (*state.spec.tools, *known)
    if not known:
        return None
    pinned = next((spec for spec in known if spec.name == action.name), None)
    fields = changes_of_tool(pinned, case.spec) if pinned is not None else []
    if not fields:
        return None
    return Judgement("ask", "changed", f"{action.name} has changed since this run began ({', '.join(fields)})")


async def check_again(desk: Desk, flight: Flight, call: int, name: str, arguments: str) -> str:
    """Why a call must not start with arguments that a hook has changed; nothing if it may.

    They are judged as if the model had written them; nobody has approved them, and nobody can be asked any more.
    """
    action = CheckCall(call, name, arguments)
    case = _open_case(desk, action)
    if isinstance(case, CallChecked):
        return case.reason
    said = await _judge(desk, case, approved=False)
    if desk.hooks.tool_gate:
        gated = await judge_gates(desk, flight, _moment(desk, call, case, said), said)
        said = _settled(desk, action, case, gated)
    match said.verdict:
        case "allow":
            return ""
        case "ask":
            return f"With other arguments it needs an approval of its own ({said.rule})."
        case "deny":
            return f"It is not allowed ({said.rule}): {said.reason}"


def _moment(desk: Desk, call: int, case: Case, said: Judgement, state: SessionState | None = None) -> CallMoment:
    view = case.view
    return CallMoment(desk.here(state=state), call, view.name, view.arguments, view.effect, verdict=said.verdict)


def _settled(desk: Desk, action: CheckCall, case: Case, said: Judgement) -> Judgement:
    """An approval that was given, or that is remembered, satisfies a gate's ask as it does a rule's."""
    if said.verdict != "ask" or not said.rule.startswith("hook"):
        return said
    remembered = desk.log.state.remembered
    return settle_ask(said, case.view.name, remembered, case.digest, approved=_is_approved(desk, action, case))


def bound_of(desk: Desk, spec: ToolSpec, arguments: str, prepared: Prepared | None) -> str:
    """What an approval is for: the circumstances (schema, policy, who asks, what was shown), and the call itself."""
    state = desk.log.state
    requester = encode_json([state.tenant, state.uid, agent_of(state)])
    shown = encode_json([prepared.snapshot, prepared.revision]) if prepared else b""
    policy = encode_json(desk.binding.spec.policy)
    if desk.above:
        policy += encode_json([above.policy.spec for above in desk.above])
    circumstances = digest_of(encode_json(spec), policy, requester, shown)
    return f"{circumstances}:{digest_of(spec.name, canonical(arguments))}"


def is_stale(desk: Desk, call: Call | None, spec: ToolSpec) -> bool:
    """Whether a call that was approved, or that a person wants repeated, is no longer what the person saw."""
    if call is None or not call.bound:
        return False
    is_repeated = call.decision is not None and call.decision.decision == "retry"
    if call.attempts and not is_repeated:
        return False
    return call.bound != bound_of(desk, spec, call.arguments, prepared_of(call))


def prepared_of(call: Call | None) -> Prepared | None:
    if call is None or (call.snapshot is None and not call.revision):
        return None
    return Prepared(call.snapshot, call.revision, ready=True, valid_until=call.valid_until)


def _is_approved(desk: Desk, action: CheckCall, case: Case) -> bool:
    """A person who changed the arguments has approved them, in the circumstances that were shown."""
    if not action.approved or not action.bound:
        return action.approved
    now = bound_of(desk, case.spec, action.arguments, case.prepared)
    return now.partition(":")[0] == action.bound.partition(":")[0]


def find_spec(desk: Desk, name: str) -> ToolSpec | None:
    """A tool of the agent's, or one that a client declared for this run."""
    tool = desk.binding.tools.get(name)
    if tool is not None:
        return tool.spec
    run = desk.log.state.run
    return next((spec for spec in run.tools if spec.name == name), None) if run else None


def _open_case(desk: Desk, action: CheckCall) -> CallChecked | Case:
    tool, state = desk.binding.tools.get(action.name), desk.log.state
    spec = tool.spec if tool is not None else find_spec(desk, action.name)
    if spec is None:
        declared = state.run.tools if state.run else ()
        known = ", ".join(item.name for item in (*desk.binding.spec.tools, *declared)) or "none"
        return _invalid(action, f"There is no tool {action.name!r}; the tools are: {known}.")
    try:
        values = tool.parse(action.arguments) if tool is not None else _parse(spec, action.arguments)
    except ValueError as error:
        return _invalid(action, f"The arguments do not fit {action.name}: {error}")
    view = CallView(action.name, values, spec.effect, state.id, state.tenant, state.data)
    return Case(spec, tool, view, digest_of(action.name, canonical(action.arguments)))


def _parse(spec: ToolSpec, arguments: str) -> dict[str, Any]:
    values = decode_json(arguments or "{}")
    if not isinstance(values, dict):
        raise ValueError("the arguments have to be one JSON object.")
    if spec.parameters is not None and (wrong := misfit(spec.parameters, values)):
        raise ValueError(f"{wrong}.")
    return cast(dict[str, Any], values)


async def _listen(desk: Desk, action: CheckCall, case: Case) -> Prepared:
    """Follows the preparation until it is ready; closing the generator tells it that nobody listens any more."""
    tool = case.tool
    listen = tool.attached("listen") if tool is not None else None
    assert listen is not None
    async with aclosing(listen(**case.view.arguments)) as updates:
        while True:
            update: object = await within(desk.world.clock, BETWEEN_UPDATES, _next(updates))
            if not isinstance(update, Prepared):
                raise ToolError("it ended before it was ready" if update is None else f"it yielded {update!r}")
            to_plain(update.snapshot)
            desk.publish(ToolProgressed(action.call, f"preparing, revision {update.revision or '-'}"))
            if update.ready:
                return update


async def _next(updates: Any) -> object:
    return await anext(updates, None)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, ToolError) else describe(error)


def _invalid(action: CheckCall, reason: str) -> CallChecked:
    return CallChecked(action.call, "invalid", "schema", reason)


def _checked(desk: Desk, action: CheckCall, case: Case, judgement: Judgement) -> CallChecked:
    prepared, spec = case.prepared, case.spec
    asks = judgement.verdict == "ask"
    questions = questions_in(case.view.arguments) if spec.kind == "question" else []
    return CallChecked(
        action.call,
        judgement.verdict,
        judgement.rule,
        judgement.reason,
        case.digest,
        sequential=spec.sequential,
        bound=bound_of(desk, spec, action.arguments, prepared) if asks else "",
        kind=spec.kind,
        prompt=show_questions(questions) if questions else "",
        response=response_schema(questions) if questions else spec.response,
        snapshot=prepared.snapshot if prepared else None,
        revision=prepared.revision if prepared else "",
        valid_until=prepared.valid_until if prepared else None,
        queue=spec.queue,
    )

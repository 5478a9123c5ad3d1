"""Policy: which calls may run, which a person has to see, which never run.

Rule 1: deny beats ask beats allow, strictly: an `allow` that matches overrides neither an `ask` rule nor
the tool's own `ask=`. Rule 2: what no rule names is allowed, unless the tool itself asks. Rule 3: a
predicate that raises, or takes longer than PATIENCE, denies. Rule 4: an approval, given or remembered,
satisfies an ask and never a deny.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from time import monotonic
from typing import Any, Literal, Protocol, TypeAlias, cast

import msgspec

from perdure.core.errors import UsageError
from perdure.core.specs import Effect, PolicySpec, matches
from perdure.core.state import Remembered

PATIENCE = 5.0


class CallView(msgspec.Struct, frozen=True):
    """What a predicate sees of a call: `arguments` are the values that the tool would get."""

    name: str
    arguments: dict[str, Any]
    effect: Effect = "once"
    session: str = ""
    tenant: str = ""
    data: Any = None


Predicate: TypeAlias = Callable[[CallView], bool | Awaitable[bool]]
Rule: TypeAlias = str | Predicate


class Judgement(msgspec.Struct, frozen=True, gc=False):
    """`rule` names what decided, for the log; `reason` says why, to the model or the person who is asked."""

    verdict: Literal["allow", "ask", "deny"]
    rule: str = ""
    reason: str = ""


class Asking(Protocol):
    """The part of a tool that a policy reads."""

    @property
    def ask(self) -> bool | Predicate: ...


class Policy(msgspec.Struct, frozen=True, eq=False):
    """Rules, each a tool's name, a glob or a predicate `(call: CallView) -> bool`, sync or async.

    deny beats ask beats allow; what no rule names is allowed, unless its tool asks.
    """

    allow: Sequence[Rule] = ()
    ask: Sequence[Rule] = ()
    deny: Sequence[Rule] = ()

    def __post_init__(self) -> None:
        for kind in ("allow", "ask", "deny"):
            given: object = getattr(self, kind)
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise UsageError(f"Policy({kind}={given!r}): give a list of names, globs or predicates.")
            for rule in cast("Sequence[object]", given):
                if not callable(rule) and not (isinstance(rule, str) and rule):
                    raise UsageError(f"Policy({kind}=[{rule!r}]): a rule is a tool's name, a glob or a predicate.")

    @property
    def spec(self) -> PolicySpec:
        names = (tuple(map(_rule_name, rules)) for rules in (self.allow, self.ask, self.deny))
        return PolicySpec(*names)

    def forbids(self, tool: str) -> bool:
        """Whether every call of the tool is denied, whatever its arguments; of predicates nobody knows before."""
        return any(isinstance(rule, str) and matches(rule, tool) for rule in self.deny)


class _Unasked:
    """A tool seen from above, where only rules count."""

    ask: bool | Predicate = False


UNASKED = _Unasked()
_ALLOWED = Judgement("allow")
_NO_RULES = Policy()


def judge_now(
    policy: Policy | None,
    tool: Asking,
    view: CallView,
    remembered: Sequence[Remembered] = (),
    digest: str = "",
    *,
    approved: bool = False,
) -> Judgement | None:
    """The verdict, or None if a predicate has to be awaited: then call `judge`.

    `digest` is that of the arguments, for remembered approvals; `approved`: a person saw this very call.
    """
    policy = policy or _NO_RULES
    if not (policy.deny or policy.ask or policy.allow or tool.ask):
        return _ALLOWED
    if any(map(_is_async, (*policy.deny, *policy.ask, tool.ask, *policy.allow))):
        return None
    steps = _judge(policy, tool, view, _Approvals(remembered, digest, approved))
    try:
        predicate = next(steps)
        while True:
            answer = _ask(predicate, view)
            if not isinstance(answer, bool | _Failure):
                if inspect.iscoroutine(answer):
                    answer.close()
                return None
            predicate = steps.send(answer)
    except StopIteration as end:
        return end.value


async def judge(
    policy: Policy | None,
    tool: Asking,
    view: CallView,
    remembered: Sequence[Remembered] = (),
    digest: str = "",
    *,
    approved: bool = False,
) -> Judgement:
    """The verdict, with the predicates awaited."""
    steps = _judge(policy or _NO_RULES, tool, view, _Approvals(remembered, digest, approved))
    try:
        predicate = next(steps)
        while True:
            answer = _ask(predicate, view)
            if not isinstance(answer, bool | _Failure):
                answer = await _await_answer(answer)
            predicate = steps.send(answer)
    except StopIteration as end:
        return end.value


_STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}


def stricter(own: Judgement, other: Judgement, agent: str) -> Judgement:
    """Of an agent's verdict and that of an agent above it, the stricter one; the other's says whose it is."""
    if _STRICTNESS[other.verdict] <= _STRICTNESS[own.verdict]:
        return own
    return Judgement(other.verdict, f"{other.rule} of {agent}", other.reason)


def settle_ask(
    asked: Judgement, name: str, remembered: Sequence[Remembered], digest: str, *, approved: bool
) -> Judgement:
    """What becomes of an ask that did not come from a rule: an approval satisfies it all the same."""
    return _Approvals(remembered, digest, approved).settle(name, asked)


class _Approvals(msgspec.Struct, frozen=True):
    remembered: Sequence[Remembered]
    digest: str
    approved: bool

    def settle(self, name: str, asked: Judgement) -> Judgement:
        """What becomes of an ask."""
        if self.approved:
            return Judgement("allow", "approved")
        for item in self.remembered:
            if matches(item.pattern, name) and item.digest in ("", self.digest):
                return Judgement("allow", f"remembered: {item.pattern}")
        return asked


class _Failure(msgspec.Struct, frozen=True):
    """A predicate gave no answer."""

    reason: str


_Answer: TypeAlias = bool | _Failure


def _judge(
    policy: Policy, tool: Asking, view: CallView, approvals: _Approvals
) -> Generator[Predicate, _Answer, Judgement]:
    """The rules in their order; yields every predicate whose answer it needs."""
    if found := (yield from _first(policy.deny, view)):
        name, failure = found
        return Judgement("deny", f"deny: {name}", failure or f"The rule {name!r} forbids it.")
    if found := (yield from _first(policy.ask, view)):
        name, failure = found
        if failure:
            return Judgement("deny", f"ask: {name}", failure)
        return approvals.settle(view.name, Judgement("ask", f"ask: {name}", f"The rule {name!r} asks for approval."))
    if tool.ask:
        answer = True if tool.ask is True else (yield tool.ask)
        if isinstance(answer, _Failure):
            return Judgement("deny", "ask: tool", answer.reason)
        if answer:
            asked = Judgement("ask", "ask: tool", f"The tool {view.name!r} asks for approval.")
            return approvals.settle(view.name, asked)
    if found := (yield from _first(policy.allow, view)):
        name, failure = found
        return Judgement("deny" if failure else "allow", f"allow: {name}", failure)
    return _ALLOWED


def _first(rules: Sequence[Rule], view: CallView) -> Generator[Predicate, _Answer, tuple[str, str] | None]:
    """The name of the first rule that holds or fails, and how it failed."""
    for rule in rules:
        answer = matches(rule, view.name) if isinstance(rule, str) else (yield rule)
        if isinstance(answer, _Failure):
            return _rule_name(rule), answer.reason
        if answer:
            return _rule_name(rule), ""
    return None


def _rule_name(rule: Rule) -> str:
    if isinstance(rule, str):
        return rule
    return getattr(rule, "__name__", None) or type(rule).__name__


def _is_async(rule: Rule | bool) -> bool:
    """Whether it has to be awaited for sure; a function that returns an awaitable is found out later."""
    if isinstance(rule, str | bool):
        return False
    return inspect.iscoroutinefunction(rule) or inspect.iscoroutinefunction(type(rule).__call__)


def _ask(predicate: Predicate, view: CallView) -> _Answer | Awaitable[bool]:
    started = monotonic()
    try:
        answer = predicate(view)
        if inspect.isawaitable(answer):
            return answer
        holds = bool(answer)
    except Exception as error:  # noqa: BLE001 - a predicate is user code: its failure is a no
        return _failed(error)
    return _late() if monotonic() - started > PATIENCE else holds


async def _contained(answer: Awaitable[bool]) -> bool:
    """A SystemExit that got out of a task would end the program and all its sessions."""
    try:
        return await answer
    except SystemExit as error:
        raise RuntimeError(f"it wanted to end the program ({error})") from error


async def _await_answer(answer: Awaitable[bool]) -> _Answer:
    """Leaves a predicate behind that neither answers nor lets itself be cancelled."""
    task = asyncio.ensure_future(_contained(answer))
    try:
        done, _ = await asyncio.wait((task,), timeout=PATIENCE)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        return _late()
    try:
        return bool(task.result())
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as above; it may cancel itself, too
        return _failed(error)


def _failed(error: BaseException) -> _Failure:
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return _Failure(f"The rule could not be checked ({what}), so the call is denied.")


def _late() -> _Failure:
    return _Failure(f"The rule took longer than {PATIENCE:g} s to check, so the call is denied.")

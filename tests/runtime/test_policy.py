"""Policies: deny beats ask beats allow, failures deny, and approvals satisfy asks alone."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Any

import pytest

from perdure.core.errors import UsageError
from perdure.core.specs import PolicySpec
from perdure.core.state import Remembered
from perdure.runtime import policy as policy_module
from perdure.runtime.policy import CallView, Judgement, Policy, judge, judge_now
from perdure.runtime.tools import Tool, tool


def charge_function(order: str = "7", cents: int = 990) -> None: ...


def charge(**options: Any) -> Tool:
    return tool(charge_function, name="charge", **options)


VIEW = CallView("charge", {"order": "7", "cents": 990}, "once", "order-7", "acme", {"user": "u7"})


def dear(call: CallView) -> bool:
    return call.arguments["cents"] > 500


def cheap(call: CallView) -> bool:
    return not dear(call)


def broken(call: CallView) -> bool:
    raise KeyError("amount")


async def dear_soon(call: CallView) -> bool:
    await asyncio.sleep(0)
    return dear(call)


async def broken_soon(call: CallView) -> bool:
    raise KeyError("amount")


TABLE: list[tuple[str, Policy | None, Tool, str, str]] = [
    ("no policy allows", None, charge(), "allow", ""),
    ("no rule allows", Policy(), charge(), "allow", ""),
    ("a rule for others does not matter", Policy(deny=["refund"], ask=["re*"]), charge(), "allow", ""),
    ("a name denies", Policy(deny=["charge"]), charge(), "deny", "deny: charge"),
    ("a glob denies", Policy(deny=["x", "ch*"]), charge(), "deny", "deny: ch*"),
    ("a glob minds the case", Policy(deny=["CH*"]), charge(), "allow", ""),
    ("a name asks", Policy(ask=["charge"]), charge(), "ask", "ask: charge"),
    ("a name allows", Policy(allow=["charge"]), charge(), "allow", "allow: charge"),
    ("a predicate denies", Policy(deny=[dear]), charge(), "deny", "deny: dear"),
    ("a predicate asks", Policy(ask=[dear]), charge(), "ask", "ask: dear"),
    ("a predicate allows", Policy(allow=[dear]), charge(), "allow", "allow: dear"),
    ("a predicate that is false does nothing", Policy(deny=[cheap], ask=[cheap]), charge(), "allow", ""),
    ("deny beats ask and allow", Policy(["*"], ["*"], ["*"]), charge(ask=True), "deny", "deny: *"),
    ("ask beats allow", Policy(["*"], ["*"]), charge(), "ask", "ask: *"),
    ("the tool asks", Policy(), charge(ask=True), "ask", "ask: tool"),
    ("the tool asks without a policy", None, charge(ask=True), "ask", "ask: tool"),
    ("the tool's predicate asks", Policy(), charge(ask=dear), "ask", "ask: tool"),
    ("the tool's predicate is false", Policy(), charge(ask=cheap), "allow", ""),
    ("allow does not silence the tool's ask", Policy(allow=["*"]), charge(ask=True), "ask", "ask: tool"),
    ("a broken deny denies", Policy(deny=[broken]), charge(), "deny", "deny: broken"),
    ("a broken ask denies", Policy(ask=[broken]), charge(), "deny", "ask: broken"),
    ("a broken allow denies", Policy(allow=[broken]), charge(), "deny", "allow: broken"),
    ("a broken ask of the tool denies", None, charge(ask=broken), "deny", "ask: tool"),
]
SOON: list[tuple[str, Policy | None, Tool, str, str]] = [
    ("an async predicate denies", Policy(deny=[dear_soon]), charge(), "deny", "deny: dear_soon"),
    ("an async predicate asks", Policy(ask=[dear_soon]), charge(), "ask", "ask: dear_soon"),
    ("an async predicate of the tool", None, charge(ask=dear_soon), "ask", "ask: tool"),
    ("a broken async predicate denies", Policy(ask=[broken_soon]), charge(), "deny", "ask: broken_soon"),
    ("an async partial", Policy(deny=[functools.partial(dear_soon)]), charge(), "deny", "deny: partial"),
    ("an awaitable of a plain function", Policy(ask=[lambda c: dear_soon(c)]), charge(), "ask", "ask: <lambda>"),
]


@pytest.mark.parametrize(("rules", "made", "verdict", "rule"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE])
async def test_verdicts(rules: Policy | None, made: Tool, verdict: str, rule: str) -> None:
    now = judge_now(rules, made, VIEW)
    assert now is not None
    assert (now.verdict, now.rule) == (verdict, rule)
    assert await judge(rules, made, VIEW) == now
    assert bool(now.reason) == (verdict != "allow")


@pytest.mark.parametrize(("rules", "made", "verdict", "rule"), [row[1:] for row in SOON], ids=[r[0] for r in SOON])
async def test_verdicts_that_have_to_be_awaited(rules: Policy | None, made: Tool, verdict: str, rule: str) -> None:
    assert judge_now(rules, made, VIEW) is None
    soon = await judge(rules, made, VIEW)
    assert (soon.verdict, soon.rule) == (verdict, rule)


def test_a_failure_is_told() -> None:
    denied = judge_now(Policy(deny=[broken]), charge(), VIEW)
    assert denied is not None
    assert denied.reason == "The rule could not be checked (KeyError: 'amount'), so the call is denied."


def test_predicates_see_the_call() -> None:
    seen: list[CallView] = []
    judge_now(Policy(deny=[lambda call: bool(seen.append(call))]), charge(), VIEW)
    assert seen == [VIEW]
    assert (VIEW.name, VIEW.effect, VIEW.session, VIEW.tenant, VIEW.data) == (
        "charge",
        "once",
        "order-7",
        "acme",
        {"user": "u7"},
    )


@pytest.mark.parametrize(
    ("remembered", "verdict", "rule"),
    [
        (Remembered("charge"), "allow", "remembered: charge"),
        (Remembered("ch*"), "allow", "remembered: ch*"),
        (Remembered("charge", "d1"), "allow", "remembered: charge"),
        (Remembered("charge", "d2"), "ask", "ask: charge"),
        (Remembered("refund"), "ask", "ask: charge"),
    ],
)
async def test_a_remembered_approval_satisfies_an_ask(remembered: Remembered, verdict: str, rule: str) -> None:
    for ask in (Policy(ask=["charge"]), Policy(ask=["charge", dear_soon])):
        judged = await judge(ask, charge(), VIEW, (Remembered("other"), remembered), "d1")
        assert (judged.verdict, judged.rule) == (verdict, rule)
    of_tool = judge_now(None, charge(ask=True), VIEW, (remembered,), "d1")
    assert of_tool is not None
    assert of_tool.verdict == verdict


async def test_no_approval_satisfies_a_deny() -> None:
    everything = (Remembered("*"),)
    for deny in (Policy(ask=["*"], deny=["charge"]), Policy(deny=[broken]), Policy(ask=[broken])):
        assert (await judge(deny, charge(ask=True), VIEW, everything, approved=True)).verdict == "deny"
    assert (await judge(None, charge(ask=broken), VIEW, everything, approved=True)).verdict == "deny"


def test_an_approved_call_is_not_asked_for_again() -> None:
    assert judge_now(Policy(ask=["*"]), charge(), VIEW, approved=True) == Judgement("allow", "approved")
    assert judge_now(None, charge(ask=True), VIEW, approved=True) == Judgement("allow", "approved")


async def test_a_predicate_that_takes_too_long_denies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "PATIENCE", 0.02)
    cancelled = asyncio.Event()

    async def never(call: CallView) -> bool:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return False

    async def stubborn(call: CallView) -> bool:
        while not cancelled.is_set() or time.monotonic() < until:
            try:
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                continue
        return False

    def slow(call: CallView) -> bool:
        time.sleep(0.03)
        return False

    until = time.monotonic() + 0.5
    for predicate in (never, stubborn, slow):
        denied = await judge(Policy(ask=[predicate]), charge(), VIEW)
        assert (denied.verdict, denied.rule) == ("deny", f"ask: {predicate.__name__}")
        assert "longer than 0.02 s" in denied.reason
    await asyncio.wait_for(cancelled.wait(), 20)
    await asyncio.sleep(0.6)


async def test_breaking_off_a_judgement_breaks_off_its_predicate() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def never(call: CallView) -> bool:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return False

    judging = asyncio.ensure_future(judge(Policy(deny=[never]), charge(), VIEW))
    await begun.wait()
    judging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await judging
    await asyncio.wait_for(cancelled.wait(), 20)


async def test_a_predicate_that_cancels_itself_denies() -> None:
    async def quits(call: CallView) -> bool:
        raise asyncio.CancelledError

    denied = await judge(Policy(deny=[quits]), charge(), VIEW)
    assert (denied.verdict, denied.rule) == ("deny", "deny: quits")


def test_the_first_match_spares_the_rest() -> None:
    asked: list[str] = []

    def note(call: CallView) -> bool:
        asked.append(call.name)
        return True

    judge_now(Policy(allow=[note], ask=[note], deny=["charge", note]), charge(ask=note), VIEW)
    assert asked == []


def test_the_spec_names_the_rules() -> None:
    class Stern:
        def __call__(self, call: CallView) -> bool:
            return True

    rules = Policy(allow=["a"], ask=["b*", dear], deny=[dear_soon, Stern()])
    assert rules.spec == PolicySpec(("a",), ("b*", "dear"), ("dear_soon", "Stern"))


@pytest.mark.parametrize("wrong", ["charge", 7, {"charge"}, [7], [""], [None]])
def test_wrong_rules_are_refused(wrong: Any) -> None:
    for kind in ("allow", "ask", "deny"):
        with pytest.raises(UsageError, match=rf"Policy\({kind}="):
            Policy(**{kind: wrong})


async def test_an_async_predicate_that_wants_to_end_the_program_denies() -> None:
    async def leave(call: CallView) -> bool:
        raise SystemExit(3)

    judgement = await judge(Policy(ask=[leave]), tool(_plain), CallView("plain", {}))
    assert judgement.verdict == "deny"
    assert "end the program" in judgement.reason


def _plain() -> str:
    """Do nothing."""
    return ""

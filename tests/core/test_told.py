"""What actions carry, what the model is told, and what people see: the words behind the decision table."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.accept import pending_id
from perdure.core.actions import AppendEvents, CallModel, CheckCall, RunTool, StartRun, SuspendCall
from perdure.core.events import (
    CallChecked,
    CallEnded,
    CallSuspended,
    Event,
    ModelResponded,
    RunEnded,
    RunResumed,
    RunStarted,
    SessionOpened,
)
from perdure.core.fold import fold
from perdure.core.messages import (
    AssistantMessage,
    Media,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
    estimate_tokens,
)
from perdure.core.rules import next_actions
from perdure.core.state import SessionState
from perdure.core.transcript import transcript, unpaired
from perdure.core.views import Pending, Summary, pending_of, summarise
from tests.core.logs import (
    OPENED,
    UID,
    allowed,
    answered,
    asking,
    called,
    decided,
    ended,
    folded,
    running,
    sent,
    started,
    stopping,
    suspended,
    turn,
)

CRASH = RunResumed(2)


def the_end(state: SessionState) -> Any:
    """The one event that the rules write by themselves."""
    (action,) = next_actions(state)
    assert isinstance(action, AppendEvents)
    (event,) = action.events
    return event


def told(*items: Event | tuple[Event, ...]) -> str:
    end = the_end(folded(*items))
    assert isinstance(end, CallEnded)
    (part,) = end.parts
    assert isinstance(part, Text)
    return part.text


def test_actions_carry_what_the_performer_needs() -> None:
    assert next_actions(folded(sent(1))) == (StartRun((1,)),)
    assert next_actions(folded(running())) == (CallModel(1),)
    assert next_actions(folded(asking("pay"))) == (CheckCall(1, "pay", '{"n":1}'),)
    assert next_actions(folded(asking("pay"), allowed(1))) == (RunTool(1, "pay", '{"n":1}', 1, "d1"),)


def test_a_person_is_asked_for_the_reason_of_the_rule() -> None:
    state = folded(asking("pay"), CallChecked(1, "ask", reason="over 100"))
    assert next_actions(state) == (SuspendCall(1, 1, "approval", "over 100"),)


def test_edited_arguments_are_what_is_checked_and_run() -> None:
    edited = (*asking("pay"), *suspended(1), decided(1, "edit", arguments='{"n":9}'))
    assert next_actions(folded(edited)) == (CheckCall(1, "pay", '{"n":9}', approved=True),)
    again = CallChecked(1, "allow", digest="d9")
    assert next_actions(folded(edited, again)) == (RunTool(1, "pay", '{"n":9}', 1, "d9"),)


def test_a_repeated_start_has_the_arguments_and_digest_of_the_first() -> None:
    state = folded(asking("pay"), started(1, "idempotent"), CRASH)
    assert next_actions(state) == (RunTool(1, "pay", '{"n":1}', 2, "d1"),)


IN_DOUBT = (*started(1), CRASH, *suspended(1, "unknown"))


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ((CallChecked(1, "deny", "policy", "not on Sundays"),), "not allowed (policy): not on Sundays"),
        (
            (*suspended(1), decided(1, "deny", by="ops", reason="too much")),
            "denied by ops: too much. It was not",
        ),
        ((*suspended(1), decided(1, "deny", reason="No.")), "denied: No. It was not carried out."),
        ((*suspended(1), decided(1, "deny")), "The call was denied. It was not carried out."),
        ((CallChecked(1, "invalid", reason="n: not a string"),), "n: not a string"),
        ((*suspended(1, "question"), decided(1, "answer", value="blue")), "blue"),
        ((*suspended(1, "question"), decided(1, "answer", value={"b": 1, "a": None})), '{"a":null,"b":1}'),
        (
            (*IN_DOUBT, decided(1, "deny", by="ops", reason="card refused")),
            "failed, as stated by ops: card refused.",
        ),
        ((*IN_DOUBT, decided(1, "deny", by="expiry")), "not known whether this call took effect"),
        ((*IN_DOUBT, stopping()), "not known whether this call took effect"),
        ((*started(1, on_unknown="tell"), CRASH), "not known whether this call took effect"),
        ((*started(1, "read"), CRASH, stopping()), "ended before this call was repeated"),
        ((stopping(),), "ended before this call started"),
        ((*suspended(1), stopping("interrupt")), "A newer input replaced this call"),
    ],
)
def test_the_model_is_told_the_truth(items: tuple[Event, ...], text: str) -> None:
    assert text in told(asking("pay"), items)


def test_a_completed_run_has_the_text_as_its_output() -> None:
    assert the_end(folded(running(), turn(), answered("12 EUR"))) == RunEnded(1, "completed", "", "12 EUR")


def test_a_typed_run_has_the_value_as_its_output() -> None:
    state = folded(running(output={"type": "object"}), turn(), answered("{}", output={"total": 12}))
    assert the_end(state).output == {"total": 12}


def test_the_model_reads_inputs_answers_and_results_in_order() -> None:
    state = folded(asking("a", "b"), started(2), ended(2), sent(2, "join"), started(1), ended(1), turn(2, inputs=(2,)))
    message = called("a", "b").message
    results = tuple(ToolResult(n, name, "ok", (Text("12"),), id) for n, name, id in ((1, "a", "id0"), (2, "b", "id1")))
    expected = [
        UserMessage((Text("input 1"),)),
        message,
        ToolMessage(results),
        UserMessage((Text("input 2"),)),
    ]
    assert list(transcript(state)) == expected
    assert unpaired(transcript(state)) == []


def test_queued_inputs_are_read_when_their_run_starts() -> None:
    state = folded(running(), turn(), sent(2), answered(), RunEnded(1, "completed"))
    assert len(state.history) == 2
    assert fold([RunStarted(2, (2,))], state).history[-1] == UserMessage((Text("input 2"),))


def test_an_output_that_does_not_fit_is_answered_with_why() -> None:
    state = folded(running(), turn(), answered("{}", invalid="name is missing."))
    assert "name is missing." in state.history[-1].parts[0].text  # pyright: ignore[reportAttributeAccessIssue]


def test_what_is_wrong_with_an_output_never_comes_between_calls_and_results() -> None:
    state = folded(running(), turn(), called("a", invalid="no output"), started(1), ended(1))
    assert unpaired(transcript(state)) == []


def test_unpaired_finds_calls_without_their_result() -> None:
    asks = AssistantMessage((ToolCall(1, "a", "{}"), ToolCall(2, "b", "{}")))
    one = ToolMessage((ToolResult(1, "a", "ok"),))
    twice = ToolMessage((ToolResult(1, "a", "ok"), ToolResult(2, "b", "ok"), ToolResult(2, "b", "ok")))
    for behind, missing in ((one, [2]), (twice, [2]), (UserMessage((Text("x"),)), [1, 2])):
        history = new_history(UserMessage((Text("hi"),)), asks, behind)
        assert unpaired(history) == missing
    assert unpaired(new_history(asks)) == [1, 2]


def new_history(*messages: Any) -> Any:
    history = SessionState().history
    for message in messages:
        history = history.add(message)
    return history


def test_people_see_what_waits_with_its_arguments() -> None:
    state = folded(asking("pay", "pay"), suspended(1), CallSuspended(2, 1, "question", "which one?", 50.0))
    first = Pending(f"{UID}-1-1", "approval", "order-7", 1, "pay", {"n": 1})
    second = Pending(f"{UID}-2-1", "question", "order-7", 2, "pay", {"n": 2}, "which one?", 50.0)
    assert pending_of(state) == (first, second)
    assert state.run is not None
    assert pending_id(state, state.run.calls[1]) == second.id
    assert summarise(state) == Summary("clerk", "waiting", False, 50.0, (first, second))


def test_people_see_arguments_that_are_not_json_as_they_are() -> None:
    bad = ModelResponded(AssistantMessage((ToolCall(1, "a", '{"n":'),)), stop="calls")
    (pending,) = pending_of(folded(running(), turn(), bad, suspended(1)))
    assert pending.arguments == '{"n":'


def test_a_decided_call_waits_no_more() -> None:
    assert pending_of(folded(asking("a"), suspended(1), decided(1, "approve"))) == ()
    assert pending_of(folded(asking("a", "b"), suspended(1), ended(1))) == ()


@pytest.mark.parametrize(
    ("items", "status", "runnable"),
    [
        ((), "idle", False),
        ((sent(1),), "running", True),
        ((*running(), turn()), "running", True),
        ((*asking("a"), *started(1)), "running", True),
        ((*asking("a"), *suspended(1)), "waiting", False),
        ((*asking("a"), *suspended(1), decided(1, "approve")), "running", True),
        ((*asking("a", "b"), *suspended(1), *started(2)), "running", True),
        ((*running(), RunEnded(1, "completed")), "idle", False),
    ],
)
def test_the_row_of_a_session_says_whether_it_has_work(items: tuple[Event, ...], status: str, runnable: bool) -> None:
    summary = summarise(folded(items))
    assert (summary.status, summary.runnable, summary.agent) == (status, runnable, "clerk")


def test_the_earliest_expiry_wakes_the_session() -> None:
    state = folded(asking("a", "b", "c"), suspended(1, expires_at=9.0), suspended(2, expires_at=5.0), suspended(3))
    assert summarise(state).wake_at == 5.0


def test_usage_adds_up_and_keeps_estimates_marked() -> None:
    total = Usage(1, 2, 3, 4, 5) + Usage(10, 20, 30, 40, 50, estimated=True)
    assert total == Usage(11, 22, 33, 44, 55, estimated=True)
    assert total.total == 33


def test_tokens_are_estimated_for_every_part() -> None:
    image = Media("image", "x", "image/png", 10)
    paper = Media("document", "x", "application/pdf", 400)
    assert estimate_tokens((Text("a" * 40), image, paper)) == 11 + 1000 + 100
    assert estimate_tokens((Thinking("b" * 40), ToolCall(1, "pay", "{" * 37))) == 10 + 11


def test_a_fork_has_its_own_name_and_an_empty_queue() -> None:
    past = [OPENED, *running(), sent(2)]
    fork = fold([*past, SessionOpened("f0", "fork", "clerk", tenant="acme", metadata={"a": "b"})])
    assert (fork.uid, fork.id, fork.tenant, fork.metadata, fork.queue) == (
        "f0",
        "fork",
        "acme",
        {"a": "b"},
        (),
    )
    assert list(fork.history) == list(fold(past).history)


def test_a_fork_keeps_the_keys_of_its_past_and_frees_those_that_waited() -> None:
    past = [OPENED, sent(1, key="read"), RunStarted(1, (1,)), sent(2, key="waited")]
    fork = fold([*past, SessionOpened("f0", "fork", "clerk")])
    assert fork.keys.get("read") is not None
    assert fork.keys.get("waited") is None

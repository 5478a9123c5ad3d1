"""ScriptedModel says what was written, where the conversation stands, and tells what was not asked for."""

from __future__ import annotations

import asyncio
import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from perdure.core.deltas import CallDelta, PartClosed, TextDelta, ThinkingDelta
from perdure.core.errors import ModelError, UsageError
from perdure.core.messages import (
    AssistantMessage,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from perdure.core.shared import Buffer
from perdure.ports import ModelRequest, ModelResponse
from perdure.testing import scripted
from perdure.testing.clock import ManualClock
from perdure.testing.replies import Reply, call
from perdure.testing.scripted import ScriptedModel, UnusedAnswers, scripted_from_json

Items = list[Any]


def history(answers: int = 0, start: str = "hi") -> Buffer[Message]:
    """A conversation with so many answers, each with the results of its calls."""
    buffer = Buffer[Message]().add(UserMessage((Text(start),)))
    for _ in range(answers):
        buffer = buffer.add(AssistantMessage((Text("said"),))).add(ToolMessage(()))
    return buffer


def request(messages: Buffer[Message] | None = None) -> ModelRequest:
    return ModelRequest("m", "", history() if messages is None else messages)


async def ask(model: ScriptedModel, messages: Buffer[Message] | None = None) -> Items:
    return [item async for item in model.stream(request(messages))]


async def said(model: ScriptedModel, messages: Buffer[Message] | None = None) -> str:
    response = (await ask(model, messages))[-1]
    return "".join(part.text for part in response.parts if isinstance(part, Text))


async def test_text_is_one_delta_and_a_response() -> None:
    assert await ask(ScriptedModel(["Done."])) == [
        TextDelta("Done."),
        ModelResponse((Text("Done."),), "end", Usage(10, 5)),
    ]


async def test_a_call_has_canonical_arguments() -> None:
    pieces = await ask(ScriptedModel([call("charge", order="7", cents=990)]))
    arguments = '{"cents":990,"order":"7"}'
    written = ToolCall(0, "charge", arguments)
    expected = ModelResponse((written,), "calls", Usage(10, 5))
    assert pieces == [CallDelta(0, "charge", arguments), PartClosed(written), expected]


def test_a_call_may_have_an_argument_called_name() -> None:
    assert call("greet", name="Ada") == ToolCall(0, "greet", '{"name":"Ada"}')


async def test_a_list_mixes_thinking_text_and_calls() -> None:
    script = [[Thinking("hm", "sig"), "I will.", call("a"), call("b")]]
    *pieces, response = await ask(ScriptedModel(script))
    assert pieces == [
        ThinkingDelta("hm"),
        PartClosed(Thinking("hm", "sig")),
        TextDelta("I will."),
        CallDelta(0, "a", "{}"),
        PartClosed(ToolCall(0, "a", "{}")),
        CallDelta(1, "b", "{}"),
        PartClosed(ToolCall(0, "b", "{}")),
    ]
    assert response.parts == (
        Thinking("hm", "sig"), Text("I will."), ToolCall(0, "a", "{}"), ToolCall(0, "b", "{}"),
    )  # fmt: skip
    assert response.stop == "calls"


async def test_a_response_is_given_as_it_is() -> None:
    response = ModelResponse((Text("Hi"),), "length", None)
    assert await ask(ScriptedModel([response])) == [TextDelta("Hi"), response]


async def test_an_error_is_raised_as_it_is() -> None:
    error = ModelError.rate_limited(retry_after=1)
    with pytest.raises(ModelError) as raised:
        await ask(ScriptedModel([error]))
    assert raised.value is error


async def test_what_a_reply_says_about_itself() -> None:
    reply = Reply("Once", usage=Usage(1, 2), stop="length")
    assert (await ask(ScriptedModel([reply])))[-1] == ModelResponse((Text("Once"),), "length", Usage(1, 2))


async def test_text_comes_in_chunks() -> None:
    *pieces, response = await ask(ScriptedModel([Reply("abcde", call("a"), chunk=2)]))
    assert pieces[:4] == [TextDelta("ab"), TextDelta("cd"), TextDelta("e"), CallDelta(0, "a", "{}")]
    assert response.parts[0] == Text("abcde")


async def test_text_comes_in_the_pieces_that_were_written() -> None:
    *pieces, response = await ask(ScriptedModel([Reply(deltas=["Hel", "", "lo"])]))
    assert pieces == [TextDelta("Hel"), TextDelta(""), TextDelta("lo")]
    assert response.parts == (Text("Hello"),)
    response = (await ask(ScriptedModel([Reply("Hello", call("a"), deltas=["Hel", "lo"])])))[-1]
    assert response.parts == (Text("Hello"), ToolCall(0, "a", "{}"))


async def test_an_empty_answer_has_no_pieces() -> None:
    assert await ask(ScriptedModel([""])) == [ModelResponse((Text(""),), "end", Usage(10, 5))]


async def test_a_cut_stream_shows_its_pieces_and_fails() -> None:
    shown: Items = []

    async def read() -> None:
        async for item in ScriptedModel([Reply("abcd", chunk=1, cut_after=2)]).stream(request()):
            shown.append(item)

    with pytest.raises(ModelError) as raised:
        await read()
    assert shown == [TextDelta("a"), TextDelta("b")]
    assert (raised.value.kind, raised.value.retryable) == ("cut", True)


async def test_a_stream_waits_on_the_clock_of_the_test() -> None:
    clock = ManualClock()
    model = ScriptedModel([Reply("ab", chunk=1, delay=5, stall=60)], clock=clock)
    shown: Items = []

    async def read() -> None:
        async for item in model.stream(request()):
            shown.append(item)

    reading = asyncio.create_task(read())
    await clock.advance(4.9)
    assert shown == []
    await clock.advance(0.1)
    assert shown == [TextDelta("a")]
    await clock.advance(59.9)
    assert shown == [TextDelta("a")]
    await clock.advance(0.1)
    assert len(shown) == 3
    await reading


async def test_a_stall_without_pieces_comes_before_the_end() -> None:
    clock = ManualClock()
    reading = asyncio.create_task(ask(ScriptedModel([Reply("", stall=9)], clock=clock)))
    await clock.advance(8)
    assert not reading.done()
    await clock.advance(1)
    assert reading.done()
    await reading


async def test_without_a_clock_a_stream_waits_for_real() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    await ask(ScriptedModel([Reply("a", delay=0.02)]))
    assert loop.time() - before >= 0.015


async def test_the_answer_is_where_the_conversation_stands() -> None:
    model = ScriptedModel(["one", "two", "three"])
    assert [await said(model, history(n)) for n in (0, 1, 2)] == ["one", "two", "three"]
    assert [await said(model, history(n)) for n in (1, 1, 0)] == ["two", "two", "one"]


async def test_a_new_process_goes_on_in_the_middle() -> None:
    assert await said(ScriptedModel(["one", "two", "three"]), history(2)) == "three"


async def test_errors_come_once_before_the_answer_behind_them() -> None:
    script = ["one", ModelError.rate_limited("slow"), Reply("x", cut_after=0), "two"]
    model = ScriptedModel(script)
    assert await said(model) == "one"
    for kind in ("rate_limited", "cut"):
        with pytest.raises(ModelError) as raised:
            await ask(model, history(1))
        assert raised.value.kind == kind
    assert await said(model, history(1)) == "two"
    assert await said(model, history(1)) == "two"
    assert await said(ScriptedModel(script), history(0)) == "one"


async def test_errors_of_earlier_answers_are_passed_over() -> None:
    model = ScriptedModel([ModelError("down"), "one", "two"])
    assert await said(model, history(1)) == "two"


async def test_an_error_that_is_raised_again_does_not_grow() -> None:
    error = ModelError("down")
    depths: list[int] = []
    for _ in range(3):
        with pytest.raises(ModelError) as raised:
            await ask(ScriptedModel([error]))
        depths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert depths[0] == depths[2]


async def test_a_script_that_is_over_says_so() -> None:
    model = ScriptedModel(["one"])
    with pytest.raises(ModelError, match=r"no more answers \(1 given, 1 written\)") as raised:
        await ask(model, history(1))
    assert raised.value.kind == "invalid_request"
    for beyond in (2, 7):
        with pytest.raises(ModelError, match="no more answers"):
            await ask(model, history(beyond))


async def test_an_empty_script_has_no_answers() -> None:
    with pytest.raises(ModelError, match="no more answers"):
        await ask(ScriptedModel([]))


async def test_conversations_are_counted_apart() -> None:
    model = ScriptedModel(["one", "two", "three"])
    left, right = history(1, "left"), history(0, "right")
    assert [await said(model, left), await said(model, right)] == ["two", "one"]
    left, right = left.add(AssistantMessage(())), right.add(AssistantMessage(()))
    assert [await said(model, left), await said(model, right)] == ["three", "two"]


async def test_a_fork_is_counted_by_its_own_messages() -> None:
    model = ScriptedModel(["one", "two", "three", "four"])
    past = history(1)
    original = past.add(AssistantMessage(())).add(AssistantMessage(()))
    assert await said(model, original) == "four"
    fork = past.add(UserMessage((Text("or else"),))).add(UserMessage((Text("hm"),)))
    assert await said(model, fork) == "two"
    assert await said(model, original) == "four"
    assert await said(model, past) == "two"


async def test_a_request_without_messages_is_the_first() -> None:
    assert await said(ScriptedModel(["one"]), Buffer()) == "one"


async def test_counting_reads_each_message_once() -> None:
    """A turn costs the same at any length of the conversation."""

    class Watched(Buffer[Message]):
        read = 0

        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            Watched.read += len(found) if isinstance(found, list) else 1
            return found

    turns = 300
    model = ScriptedModel(["x"] * turns)
    messages: list[Message] = [UserMessage((Text("hi"),))]
    for _ in range(turns):
        await ask(model, Watched(messages))
        messages += [AssistantMessage(()), ToolMessage(())]
    assert Watched.read < 10 * turns


async def test_old_conversations_are_forgotten_not_miscounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted, "MAX_CONVERSATIONS", 2)
    model = ScriptedModel(["one", "two"])
    talks = [history(1, f"talk {n}") for n in range(5)]
    assert [await said(model, talk) for talk in (*talks, *talks)] == ["two"] * 10
    assert len(model._counts) == 2


async def test_requests_are_kept_as_they_were_sent() -> None:
    model = ScriptedModel(["one"])
    sent = request()
    async for _ in model.stream(sent):
        pass
    assert model.requests == [sent]
    assert model.requests[0].messages is sent.messages


async def test_a_function_answers_the_request() -> None:
    def answer(asked: ModelRequest) -> Any:
        return f"{len(asked.messages)} messages"

    model = ScriptedModel(answer)
    assert await said(model, history(2)) == "5 messages"
    assert model.unused == ()
    model.finish()


async def test_an_async_function_answers_too() -> None:
    async def answer(asked: ModelRequest) -> Any:
        await asyncio.sleep(0)
        return ModelError("down") if len(asked.messages) > 1 else [call("a")]

    model = ScriptedModel(answer)
    assert (await ask(model))[-1].stop == "calls"
    with pytest.raises(ModelError, match="down"):
        await ask(model, history(1))


async def test_a_function_without_an_answer_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="NoneType is no answer"):
        await ask(ScriptedModel(lambda _: None))  # pyright: ignore[reportArgumentType]


async def test_unused_answers_fail() -> None:
    model = ScriptedModel(["one", ModelError("down"), "two"])
    assert len(model.unused) == 3
    await ask(model)
    assert model.unused[1:] == ("two",)
    for check in (model.finish, model.assert_exhausted):
        with pytest.raises(UnusedAnswers, match="2 answers left of 3") as raised:
            check()
        assert isinstance(raised.value, AssertionError)
        assert isinstance(raised.value, UsageError)


async def test_what_an_earlier_process_asked_for_counts_as_used() -> None:
    model = ScriptedModel(["one", "two", "three"])
    await ask(model, history(1))
    assert model.unused == ("three",)
    await ask(model, history(2))
    model.finish()


async def test_leaving_the_block_fails_with_answers_left() -> None:
    with pytest.raises(UnusedAnswers, match="1 answer left of 1"), ScriptedModel(["one"]):
        pass
    with ScriptedModel(["one"]) as model:
        await ask(model)


def test_another_error_is_not_hidden_by_answers_left() -> None:
    with pytest.raises(ZeroDivisionError), ScriptedModel(["one"]):
        raise ZeroDivisionError


def test_cost_and_name_are_what_was_given() -> None:
    model = ScriptedModel([], name="m1", cost=lambda usage: usage.total * 0.5)
    assert (model.name, model.cost(Usage(1, 2))) == ("m1", 1.5)
    assert (ScriptedModel([]).name, ScriptedModel([]).cost(Usage())) == ("scripted", 0.0)


async def test_a_provider_may_not_count() -> None:
    assert (await ask(ScriptedModel(["x"], usage=None)))[-1].usage is None


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("Done.", "a list of answers or a function, not str"),
        (7, "not int"),
        ([7], "int is no answer"),
        ([["a", 7]], "int is no part of an answer"),
        ([Reply("a", chunk=0)], "at least 1 character"),
        ([Reply("ab", deltas=["a", "c"])], "add up to 'ac'"),
    ],
)
def test_what_is_no_script_is_refused_at_once(script: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ScriptedModel(script)


def written(folder: Path, content: Any) -> Path:
    path = folder / "script.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


async def test_a_script_may_be_a_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        [
            {"text": "I pay.", "calls": [{"name": "pay", "arguments": {"cents": 9, "name": "x"}}, {"name": "log"}]},
            {"error": "rate_limited", "retry_after": 2, "message": "slow down"},
            {"text": "abc", "chunk": 2, "usage": {"input": 1}, "stop": "length"},
            "Done.",
        ],
    )  # fmt: skip
    model = scripted_from_json(path)
    assert model.name == f"scripted:{path}"
    calls = (ToolCall(0, "pay", '{"cents":9,"name":"x"}'), ToolCall(0, "log", "{}"))
    assert (await ask(model))[-1].parts == (Text("I pay."), *calls)
    with pytest.raises(ModelError, match="slow down") as raised:
        await ask(model, history(1))
    assert (raised.value.kind, raised.value.retry_after) == ("rate_limited", 2)
    assert await ask(model, history(1)) == [
        TextDelta("ab"), TextDelta("c"), ModelResponse((Text("abc"),), "length", Usage(1)),
    ]  # fmt: skip
    assert await said(model, history(2)) == "Done."
    model.finish()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not a JSON list of answers"),
        ({"text": "a"}, r"Expected `array`"),
        ([{"txt": "a"}], "unknown field `txt`"),
        ([{"error": "bored"}], "Invalid enum value 'bored'"),
        ([{"calls": [{"arguments": {}}]}], "missing required field `name`"),
        ([{"calls": [{"name": "a", "arguments": [1]}]}], "Expected `object`"),
        (["a", {}], "says nothing in entry 2"),
        ("[" * 100_000, "is not a JSON list of answers"),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(tmp_path: Path, content: Any, says: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UsageError, match=says) as raised:
        scripted_from_json(path)
    assert "\n" not in str(raised.value)
    assert "script.json" in str(raised.value)


def test_a_missing_file_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        scripted_from_json(tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot be read"):
        scripted_from_json(tmp_path)

"""The one codec: the same bytes for the same facts, and one typed answer to every hostile value."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import codec, upcast
from perdure.core.codec import (
    MAX_IN_EVENT,
    MAX_NESTING,
    MAX_WRITTEN,
    decode_event,
    decode_json,
    digest_of,
    encode_event,
    encode_json,
)
from perdure.core.errors import StoreError, TooNew, UsageError
from perdure.core.events import CallEnded, InputAccepted, Noted, RunStarted
from perdure.core.messages import Text
from perdure.core.specs import Limits
from tests.core.strategies import EVENT, JSON_VALUE, often


def nested(depth: int, core: Any = 0) -> Any:
    for _ in range(depth):
        core = [core]
    return core


def noted(data: Any) -> Any:
    """A value after a trip through the log."""
    event = decode_event(encode_event(Noted("x", data)))
    assert isinstance(event, Noted)
    return event.data


def test_the_bytes_are_canonical() -> None:
    assert encode_json({"b": [1, 2.5, None], "a": "é\n"}) == '{"a":"é\\n","b":[1,2.5,null]}'.encode()
    assert encode_json({"x": {"b": 1, "a": 2}}) == encode_json({"x": {"a": 2, "b": 1}})


def test_the_bytes_of_an_event_stay_as_they_are() -> None:
    event = CallEnded(3, "ok", (Text("12"),), seconds=0.5)
    assert encode_event(event) == (
        b'{"type":"CallEnded","call":3,"outcome":"ok","parts":[{"type":"text","text":"12"}],"seconds":0.5}'
    )


def test_what_is_at_its_default_is_not_written() -> None:
    assert encode_event(RunStarted(1, (1,))) == b'{"type":"RunStarted","run":1,"inputs":[1]}'


@often
@given(JSON_VALUE)
def test_plain_values_survive(value: Any) -> None:
    assert decode_json(encode_json(value)) == value
    assert encode_json(decode_json(encode_json(value))) == encode_json(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_not_become_null(value: float) -> None:
    assert noted([value]) == [None]


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity"])
def test_such_numbers_are_not_read(text: str) -> None:
    with pytest.raises(ValueError, match="malformed"):
        decode_json(text)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udfff", "\ufffd"),
        ({"k\ud800": ["\ud83d", "\ud83d\ude00"]}, {"k\ufffd": ["\ufffd", "😀"]}),
        ("\0", "\0"),
        ({"\0": "a\0b"}, {"\0": "a\0b"}),
    ],
)
def test_hostile_text_has_one_form(value: Any, kept: Any) -> None:
    assert noted(value) == kept


def test_a_lone_surrogate_in_a_typed_field_has_the_same_form() -> None:
    event = InputAccepted(1, (Text("a\ud800"),), key="k\udc00")
    assert decode_event(encode_event(event)) == InputAccepted(1, (Text("a\ufffd"),), key="k\ufffd")


@pytest.mark.parametrize("text", ['"\\ud800"', '"a\ud800"', b'"\xed\xa0\x80"', b'"\xff"'])
def test_text_that_is_not_unicode_is_not_read(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        decode_json(text)


def test_repeated_keys_keep_the_last() -> None:
    assert decode_json('{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}


@pytest.mark.parametrize("value", [2**63, 2**64, -(2**70), 10**4000])
def test_large_integers_survive(value: int) -> None:
    assert noted([value]) == [value]


def test_endless_integers_are_refused_on_both_sides() -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        encode_json(10**5000)
    with pytest.raises(ValueError, match="out of range"):
        decode_json("1" * 5000)


@pytest.mark.parametrize("value", [object(), {1: 2}, {None: 1}, {(1, 2): 3}, lambda: None, nested(100_000)])
def test_what_is_not_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="pass plain data") as refusal:
        encode_json({"value": value})
    assert "\n" not in str(refusal.value)


def test_deep_nesting_is_not_read() -> None:
    deepest = [nested(MAX_NESTING - 1), [], {}]
    assert decode_json(encode_json(deepest)) == deepest
    for depth in (MAX_NESTING + 1, 100_000):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            with pytest.raises(ValueError, match="nested"):
                decode_json(opening * depth + "0" + closing * depth)


def test_brackets_in_text_and_side_by_side_are_no_nesting() -> None:
    value = ["[" * 5_000, '{"[\\"[' * 1_000, *[{"a": []}] * 1_000]
    assert decode_json(encode_json(value)) == value


def test_unclosed_text_full_of_escapes_is_refused_quickly() -> None:
    with pytest.raises(ValueError, match="truncated"):
        decode_json("[" + "[]," * 300 + '"' + '\\"' * 300_000)


@pytest.mark.parametrize("text", ["plain", "\ud800"])
def test_how_deep_a_value_may_be_does_not_depend_on_the_interpreter(text: str) -> None:
    """Another Python may read what this one writes, and its stack may allow less."""
    assert encode_json(nested(MAX_WRITTEN, text)).count(b"[") == MAX_WRITTEN
    with pytest.raises(UsageError, match=f"nested deeper than {MAX_WRITTEN} levels"):
        encode_json(nested(MAX_WRITTEN + 1, text))
    with pytest.raises(UsageError, match="cannot be written"):
        encode_json(nested(900, text))


def test_an_event_holds_whatever_could_be_read_and_fits_into_what_stands_around_it() -> None:
    assert noted(nested(MAX_NESTING)) == nested(MAX_NESTING)
    deepest = encode_event(Noted("x", nested(MAX_IN_EVENT - 1)))
    assert encode_json({"line": [msgspec.Raw(deepest)]})
    with pytest.raises(UsageError, match=f"nested deeper than {MAX_IN_EVENT} levels"):
        encode_event(Noted("x", nested(MAX_IN_EVENT)))
    with pytest.raises(TooNew, match="upgrade"):
        decode_event(deepest.replace(b'"Noted"', b'"Newer"'))


@often
@given(st.text(alphabet='\\"[]{}a') | st.lists(st.text(alphabet='\\"[]{}a')))
def test_what_stands_in_text_is_never_taken_for_nesting(value: Any) -> None:
    padding = "[" * (MAX_WRITTEN + 1)
    assert decode_json(encode_json([value, padding])) == [value, padding]
    with pytest.raises(UsageError, match="nested deeper"):
        encode_json([value, nested(MAX_WRITTEN)])


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"Teleported","call":1}',
        b'{"type":"RunStarted","run":"one","inputs":[]}',
        b'{"type":"RunStarted","run":1}',
        b'{"type":"RunStarted","run":1,"inputs":[1],"limits":{"turns":-1}}',
        b'{"type":"CallEnded","call":1,"outcome":"exploded"}',
        b'{"call":1}',
        b"[1]",
        b"null",
    ],
)
def test_what_a_newer_version_may_have_written_is_said_to_be_too_new(payload: bytes) -> None:
    with pytest.raises(TooNew, match="upgrade"):
        decode_event(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b'{"type":"Noted","kind":"\xff"}',
        b'{"type":"Noted","kind":"\\ud800"}',
        b'{"type":"Noted","kind":"x","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_json_is_damaged(payload: bytes) -> None:
    with pytest.raises(StoreError, match="damaged") as raised:
        decode_event(payload)
    assert type(raised.value) is StoreError


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"Noted","kind":"x","mood":"good"}',
        b'{"type":"CallEnded","call":1,"outcome":"ok","parts":[{"type":"text","text":"a","mood":"good"}]}',
        b'{"type":"SessionFolded","by":"nobody"}',
        b'{"type":"CallEnded","call":1,"outcome":"forgiven"}',
    ],
)
def test_what_a_newer_version_added_is_not_passed_over(payload: bytes) -> None:
    with pytest.raises(TooNew, match=r"a newer version of Perdure may have written it: upgrade\.$"):
        decode_event(payload)


@often
@given(EVENT, st.data())
def test_damaged_records_are_store_errors_or_other_facts(event: Any, data: st.DataObject) -> None:
    payload = bytearray(encode_event(event))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    with suppress(StoreError):
        decode_event(bytes(payload))


def test_yesterday_s_kinds_are_brought_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_remarked(payload: dict[str, Any]) -> dict[str, Any]:
        return {"type": "Noted", "kind": payload["about"]}

    monkeypatch.setattr(upcast, "UPCASTS", {"Remarked": from_remarked})
    assert codec.decode_event(b'{"type":"Remarked","about":"hook"}') == Noted("hook")


def test_limits_of_infinity_are_no_limits() -> None:
    written = decode_event(encode_event(RunStarted(1, (), limits=Limits(seconds=math.inf))))
    assert written == RunStarted(1, (), limits=Limits())


def test_digests_are_stable_and_tell_parts_apart() -> None:
    assert digest_of("pay", b"{}") == "5e57bfab7d22b7722b15ed48b11f7414"
    assert digest_of("ab", "c") != digest_of("a", "bc") != digest_of("abc")
    assert digest_of("a") == digest_of(b"a")
    assert digest_of() != digest_of("")
    assert len(digest_of("\ud800")) == 32

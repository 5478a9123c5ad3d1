"""What many clients must have been told: one order for everybody, and nothing acknowledged that is not in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from perdure.core.codec import digest_of, encode_event
from perdure.core.messages import Text
from perdure.events import (
    CallDecided,
    InputAccepted,
    InputChanged,
    ModelCalled,
    ModelFailed,
    ModelResponded,
    RunEnded,
    RunStarted,
    StopRequested,
)
from perdure.ports import Record
from tests.engines.clients import Followed, Told
from tests.runtime.scenes import check_log


class Attempt(msgspec.Struct):
    """A model call in the log: which input it is for, and what came of it, once that is known."""

    key: str
    answer: str | None = None


def broken(logs: Mapping[str, list[Record]], told: Sequence[Told], followed: Sequence[Followed]) -> Iterator[str]:
    """Everything that is wrong, in words; `logs` and `told` go by the session's id."""
    by_uid = {records[0].session: id for id, records in logs.items()}
    for id, records in logs.items():
        check_log(records)
        own = [one for one in told if one.session == id]
        for law in (_inputs(records, own), _order(records), _decisions(records, own), _stops(records, own)):
            yield from (f"session {id}: {what}" for what in law)
    for one in followed:
        records = logs[by_uid[one.session]]
        for law in (_records_seen(records, one), _words_seen(records, one)):
            yield from (f"session {by_uid[one.session]}, client {one.client}: {what}" for what in law)


def _inputs(records: list[Record], told: list[Told]) -> Iterator[str]:
    accepted: dict[str, list[InputAccepted]] = {}
    for record in records:
        if isinstance(record.event, InputAccepted):
            accepted.setdefault(record.event.key or "", []).append(record.event)
    taken = Counter(number for _, number in _taken(records))
    retracted = {r.event.input for r in records if isinstance(r.event, InputChanged) and r.event.retracted}
    sent = {one.key: one for one in told if one.what == "input"}
    for key, one in sent.items():
        found = accepted.pop(key, [])
        if len(found) != 1 and not (one.is_unknown and not found):
            yield f"the acknowledged input {key} is in the log {len(found)} times"
        for event in found:
            if not one.is_unknown and event.input != one.input:
                yield f"the input {key} was acknowledged as {one.input} and is {event.input}"
            if event.parts != (Text(one.words),):
                yield f"the input {key} has other words"
            fate = taken[event.input] + (event.input in retracted)
            if fate != 1:
                yield f"the input {key} was served {taken[event.input]} times, retracted: {event.input in retracted}"
    yield from (f"nobody sent the input {key}" for key in accepted)
    for one in told:
        if one.what == "retract" and one.input not in retracted:
            yield f"the acknowledged retraction of {one.key} is lost"


def _taken(records: list[Record]) -> Iterator[tuple[int, int]]:
    """The inputs as they were taken: where, and which."""
    for record in records:
        if isinstance(record.event, RunStarted | ModelCalled):
            for number in record.event.inputs:
                yield record.seq, number


def _order(records: list[Record]) -> Iterator[str]:
    """Inputs of one kind are heard in the order in which they were accepted."""
    kinds = {r.event.input: r.event.busy for r in records if isinstance(r.event, InputAccepted)}
    last: dict[str, int] = {}
    for _, number in _taken(records):
        before = last.get(kinds[number], 0)
        if number < before:
            yield f"input {number} was heard behind {before}, of the same kind"
        last[kinds[number]] = number


def _decisions(records: list[Record], told: list[Told]) -> Iterator[str]:
    decided = Counter((r.event.call, r.event.pause) for r in records if isinstance(r.event, CallDecided))
    yield from (f"call {call} was decided {times} times" for (call, _), times in decided.items() if times > 1)
    by = {(r.event.call, r.event.pause): r.event.by for r in records if isinstance(r.event, CallDecided)}
    for one in told:
        if one.what == "decide":
            call, pause = (int(number) for number in one.key.split("-")[1:3])
            if by.get((call, pause)) != one.words:
                yield f"the decision of {one.words} about call {call} was acknowledged and is not in the log"


def _stops(records: list[Record], told: list[Told]) -> Iterator[str]:
    """A run that is being ended already takes a second stop without another word."""
    asked = sum(one.what == "stop" for one in told)
    found = sum(isinstance(r.event, StopRequested) for r in records)
    if asked and not found:
        yield f"{asked} stops were acknowledged and none is in the log"


def _records_seen(records: list[Record], one: Followed) -> Iterator[str]:
    log = [(record.seq, digest_of(encode_event(record.event))) for record in records]
    seen = [(item.seq, item.text) for item in one.items if item.kind == "record"]
    if seen != log:
        place = next((at for at, (a, b) in enumerate(zip(seen, log, strict=False)) if a != b), min(len(seen), len(log)))
        yield f"it saw {len(seen)} of {len(log)} records, and record {place + 1} differs"


def attempts(records: list[Record]) -> dict[int, Attempt | None]:
    """For every seq the model call that was under way behind it."""
    keys = {r.event.input: r.event.key or "" for r in records if isinstance(r.event, InputAccepted)}
    now: Attempt | None = None
    last, found = "", dict[int, Attempt | None]()
    for record in records:
        match record.event:
            case RunStarted(inputs=inputs):
                last = keys[inputs[-1]] if inputs else last
            case ModelCalled(inputs=inputs):
                last = keys[inputs[-1]] if inputs else last
                now = Attempt(last)
            case ModelResponded(message=message):
                if now is not None:
                    now.answer = message.text
                now = None
            case ModelFailed() | RunEnded():
                now = None
            case _:
                pass
        found[record.seq] = now
    return found


def _words_seen(records: list[Record], one: Followed) -> Iterator[str]:
    """Words come behind the records that they belong to, in their order, each once, and are those of the answer."""
    under_way = attempts(records)
    attempt: Attempt | None = None
    place = 0
    for item in one.items:
        now = under_way.get(item.seq)
        if now is not attempt:
            attempt, place = now, 0
        if item.kind != "words":
            continue
        if attempt is None:
            yield f"{item.text!r} was seen behind record {item.seq}, where no model was at work"
            continue
        for word in item.text.split():
            key, _, number = word.rpartition(":")
            if key != attempt.key:
                yield f"{word!r} was seen behind record {item.seq}, where the model answered {attempt.key}"
            elif int(number) < place:
                yield f"{word!r} was seen twice or too late behind record {item.seq}"
            elif attempt.answer is not None and f"{word} " not in attempt.answer:
                yield f"{word!r} is not in the answer"
            place = max(place, int(number) + 1)

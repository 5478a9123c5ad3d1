"""What a wire format is: two pure functions, to_wire and from_wire, and the few facts around them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol, TypeVar, cast

import msgspec

from perdure.core.codec import decode_json, encode_json
from perdure.core.deltas import ModelDelta
from perdure.core.errors import ModelErrorKind
from perdure.core.messages import JSON, AnswerPart, Media, Message, Text, ToolCall, ToolMessage, UserMessage
from perdure.core.shared import Buffer
from perdure.ports import ModelRequest, ModelResponse

T = TypeVar("T")

Files = Mapping[str, bytes]
"""The bytes of the artifacts that a request names, by digest."""

MAX_TOKENS = 10**9
"""A count beyond this is no count."""

BLOCK = 64
"""So many messages are joined for good."""

_STATUS_KINDS: dict[int, ModelErrorKind] = {
    401: "auth",
    402: "quota_exhausted",
    403: "auth",
    404: "not_found",
    408: "server",
    409: "server",
    413: "context_too_long",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}

encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


def write(value: JSON) -> bytes:
    """JSON bytes; lone surrogates, which nobody reads, are replaced."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        return encode_json(value)


class Failure(msgspec.Struct, frozen=True):
    """What a provider's error says: its class, its words, and when to come again."""

    kind: ModelErrorKind
    message: str
    retry_after: float | None = None


class Reader(Protocol):
    """from_wire, in pieces: bytes in, deltas out; a ModelError where the provider reports one or talks nonsense."""

    def read(self, data: bytes) -> Sequence[ModelDelta]: ...

    @property
    def is_done(self) -> bool:
        """The provider has said that this was all; whatever follows is ignored."""
        ...

    def finish(self) -> ModelResponse:
        """The answer, once the bytes have ended; a ModelError of kind cut if they ended too early."""
        ...


class Wire(Protocol):
    """A wire format, hashable and without state. `name` marks the signatures and extras that are its own."""

    @property
    def name(self) -> str: ...

    @property
    def continues(self) -> bool:
        """Whether a request's prefix can be sent."""
        ...

    def address(self, base_url: str, model: str) -> str: ...

    def headers(self, key: str) -> dict[str, str]: ...

    def to_wire(self, request: ModelRequest, model: str, files: Files) -> bytes: ...

    def from_wire(self, request: ModelRequest) -> Reader: ...

    def read_failure(self, status: int, body: bytes) -> Failure:
        """The class of an answer with an HTTP status that is no success."""
        ...


def kind_of_status(status: int) -> ModelErrorKind:
    """What an HTTP status means where the body says nothing better."""
    return _STATUS_KINDS.get(status) or ("server" if status >= 500 else "invalid_request")


def call_id(ordinal: int) -> str:
    """The id of a call for the provider's eyes: ours, so it is unique; nine letters and digits suit every provider."""
    return f"c{ordinal:08d}"


def write_messages(messages: Sequence[Message], key: Hashable, write: Callable[[Message], bytes]) -> list[bytes]:
    """The messages as `write` makes them (objects, each with a comma behind it), made once per message and key.

    A list of the caller's own, in which older messages stand together: a long history is a few pieces.
    """
    if not isinstance(messages, Buffer):
        return [write(message) for message in messages]
    messages.derive(key, write)
    return messages.joined(key, BLOCK, b"".join)


def write_all(request: ModelRequest, key: Hashable, write: Callable[[Message], bytes]) -> list[bytes]:
    """The conversation, and what stands before and behind it for this request alone."""
    messages = write_messages(request.messages, key, write)
    if request.preface or request.suffix:
        return [*map(write, request.preface), *messages, *map(write, request.suffix)]
    return messages


def write_beside(
    request: ModelRequest, wire: Hashable, model: str, write: Callable[[ModelRequest, str], T], also: object = None
) -> T:
    """What `write` makes of everything but the conversation; made again where it is not what the last request had.

    Schemas and instructions are long and stay the same. `also` is what they depend on besides the request's fields.
    """
    if not isinstance(request.messages, Buffer):
        return write(request, model)
    settings, tools, prefix = request.settings, request.tools, request.prefix
    # As text: a hook may fill the same dict anew, and True is 1 to Python but not to a provider.
    extra = repr(settings.extra) if settings.extra else ""
    basis = (model, request.cache_key, settings, extra, tools, request.instructions, request.output, prefix, also)
    return request.messages.kept((wire, write_beside), basis, lambda: write(request, model))


def open_list(fields: bytes, name: bytes) -> bytes:
    """A request's object up to where its last field begins, the list `name`."""
    return b'%b%b"%b":[' % (fields[:-1], b"," if len(fields) > 2 else b"", name)


def compose(opening: bytes, items: list[bytes]) -> bytes:
    """A request: what `open_list` made, and the items, each with a comma behind it or empty."""
    while items and not items[-1]:
        items.pop()
    if items:
        items[-1] = items[-1][:-1]
    # One join, because a long history is large.
    return b"".join((opening, *items, b"]}"))


def unwritten(messages: Sequence[Message], key: Hashable) -> Sequence[Message]:
    """The messages that `write_messages` has not made yet."""
    return messages.underived(key) if isinstance(messages, Buffer) else messages


def media_of(messages: Sequence[Message]) -> set[str]:
    """The artifacts that these messages name."""
    found: set[str] = set()
    for message in messages:
        match message:
            case ToolMessage(results=results):
                found.update([p.artifact for result in results for p in result.parts if isinstance(p, Media)])
            case UserMessage(parts=parts):
                found.update([part.artifact for part in parts if isinstance(part, Media)])
            case _:
                pass
    return found


def spoken(parts: Sequence[AnswerPart]) -> Sequence[AnswerPart]:
    """An answer up to its last word or call: providers refuse one that ends with a thought."""
    for end in range(len(parts), 0, -1):
        match parts[end - 1]:
            case Text(text=text, extras=extras) if text.strip() or extras is not None:
                return parts[:end]
            case ToolCall():
                return parts[:end]
            case _:
                pass
    return ()


def object_of(arguments: str) -> JSON:
    """Arguments as an object, which some APIs want; what the model wrote instead is shown to it as it was."""
    try:
        found = decode_json(arguments)
    except ValueError:
        found = None
    return msgspec.Raw(arguments.encode()) if isinstance(found, dict) else {"unreadable_arguments": arguments}


def unshown(media: Media) -> str:
    """What stands for a file of a type that a provider does not take."""
    return f"[{media.name or 'a file'} of type {media.media_type} cannot be shown here]"


def with_extra(fields: dict[str, JSON], extra: dict[str, JSON], *, reserved: str) -> dict[str, JSON]:
    """The fields with what the settings add: objects are merged, all else replaced. The conversation is not theirs."""
    if reserved in extra:
        raise ValueError(f"extra has {reserved}, which is the conversation")
    return _merged(fields, extra) if extra else fields


def _merged(one: dict[str, JSON], other: dict[str, JSON]) -> dict[str, JSON]:
    merged = dict(one)
    for name, value in other.items():
        known = merged.get(name)
        is_deeper = isinstance(known, dict) and isinstance(value, dict)
        merged[name] = _merged(cast(dict[str, JSON], known), cast(dict[str, JSON], value)) if is_deeper else value
    return merged


def without_none(fields: dict[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in fields.items() if value is not None}

"""Types <-> JSON: a schema and a strict codec for tool parameters, session data and outputs.

Rule 1: nothing is coerced: "7" is no integer. Rule 2: a constraint is enforced, or its type is refused.
Rule 3: a schema resolves its references itself and is the same in every process.
msgspec does the work; pydantic is imported only for types that are its own; a union that msgspec refuses is
tried member by member.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Union, cast, get_args, get_origin

import msgspec

from perdure.core.codec import MAX_NESTING, decode_json, encode_json
from perdure.core.errors import UsageError
from perdure.core.messages import JSON
from perdure.runtime.plain import is_pydantic_class, to_plain
from perdure.runtime.refs import FOREIGN, absorb, assemble
from perdure.runtime.survey import Survey, show_type


class Codec:
    """One type, compiled; `schema` is self-contained."""

    __slots__ = ("_convert", "_plain", "_read", "schema")

    def __init__(
        self,
        schema: dict[str, JSON],
        read: Callable[[bytes], Any],
        convert: Callable[[JSON], Any],
        plain: Callable[[object], JSON] = to_plain,
    ) -> None:
        self.schema = schema
        self._read = read
        self._convert = convert
        self._plain = plain

    def decode(self, value: JSON | bytes) -> Any:
        """Bytes are JSON text, all else a plain JSON value; a ValueError says what does not fit and where."""
        return _decode(self._read if isinstance(value, bytes) else self._convert, value)

    def encode(self, value: object) -> JSON:
        """Plain JSON data, checked against the type; a ValueError says what does not fit."""
        plain = _decode(self._plain, value)
        self.decode(plain)
        return plain


def codec_of(annotation: Any) -> Codec:
    """A codec for a type, or for a list of types: their union. UsageError for what has no JSON form."""
    annotation = _as_type(annotation)
    return _refuse(show_type(annotation), lambda: _compile(annotation))


def schema_of(annotation: Any) -> dict[str, JSON]:
    return codec_of(annotation).schema


def struct_codec(fields: Sequence[tuple[str, Any] | tuple[str, Any, Any]]) -> Codec:
    """A codec for an object of exactly these fields (name, type, perhaps a default); decodes to a struct."""

    def compile_struct() -> Codec:
        lowered = [(name, _field_type(annotation), *default) for name, annotation, *default in fields]
        struct = msgspec.defstruct("Arguments", lowered, kw_only=True, forbid_unknown_fields=True)
        return _msgspec_codec(struct)

    return _refuse("of the arguments", compile_struct)


def _refuse(shown: str, build: Callable[[], Codec]) -> Codec:
    try:
        return build()
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - reading a type runs user code: hooks, defaults, forward references
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise UsageError(f"The type {shown} cannot be used: {reason}.") from None


def _as_type(annotation: Any) -> Any:
    if isinstance(annotation, list | tuple):
        members = tuple(cast("Sequence[Any]", annotation))
        if not members:
            raise UsageError("An empty list is no type; give at least one.")
        return Union[members]  # noqa: UP007 - the members are known at run time only
    return annotation


def _compile(annotation: Any) -> Codec:
    survey = Survey.of(annotation)
    if not survey.pydantic:
        return _msgspec_codec(_lower(annotation))
    if not survey.msgspec:
        return _pydantic_codec(annotation)
    if _is_union(annotation):
        return _choice_codec(get_args(annotation))
    if survey.pydantic_constraints:
        raise UsageError(
            f"The type {show_type(annotation)} mixes pydantic's constraints with msgspec's types; "
            "keep to one of the two."
        )
    return _msgspec_codec(_lower(annotation))


def _field_type(annotation: Any) -> Any:
    """The type of a struct's field: what msgspec takes, or a stand-in that carries its own codec."""
    return _stand_in(_compile(annotation)) if Survey.of(annotation).pydantic else _lower(annotation)


def _lower(annotation: Any) -> Any:
    """The same type with a stand-in for every union that msgspec refuses."""
    if annotation is object:
        return Any
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        lowered = _lower(args[0])
        return annotation if lowered is args[0] else Annotated[(lowered, *annotation.__metadata__)]
    if _is_union(annotation):
        union = Union[tuple(_lower(member) for member in args)]  # noqa: UP007 - known at run time only
        return union if _accepts(union) else _stand_in(_choice_codec(args))
    if not (isinstance(origin, type) and issubclass(origin, Collection) and args):
        return annotation
    lowered_args = tuple(arg if arg is Ellipsis else _lower(arg) for arg in args)
    same = all(new is old for new, old in zip(lowered_args, args, strict=True))
    return annotation if same else cast(Any, origin)[lowered_args]


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _accepts(annotation: Any) -> bool:
    try:
        msgspec.json.Decoder(annotation, dec_hook=_from_foreign)
    except TypeError:
        return False
    return True


def _msgspec_codec(annotation: Any) -> Codec:
    decoder = msgspec.json.Decoder(annotation, dec_hook=_from_foreign)

    def convert(value: JSON) -> Any:
        return msgspec.convert(value, annotation, dec_hook=_from_foreign, str_keys=True)

    def read(text: bytes) -> Any:
        # decode_json refuses deep nesting, but most texts have not even that many brackets.
        shallow = text.count(b"{") + text.count(b"[") < MAX_NESTING
        return decoder.decode(text) if shallow else convert(decode_json(text))

    return Codec(_msgspec_schema(annotation), read, convert)


def _msgspec_schema(annotation: Any) -> dict[str, JSON]:
    foreign: list[dict[str, JSON]] = []

    def hook(stranger: Any) -> dict[str, JSON]:
        foreign.append(_foreign_codec(stranger).schema)
        return {"$ref": f"{FOREIGN}{len(foreign) - 1}"}

    defs: dict[str, JSON] = {}
    root = absorb(msgspec.json.schema(annotation, schema_hook=hook), defs)
    return assemble(root, defs, foreign)


def _from_foreign(stranger: Any, value: JSON) -> Any:
    return _foreign_codec(stranger).decode(value)


def _stand_in(codec: Codec) -> Any:
    """A class that msgspec takes for a custom type, of which everything is an instance."""
    return _Whatever("StandIn", (), {"__perdure_codec__": codec})


class _Whatever(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return True


def _foreign_codec(stranger: Any) -> Codec:
    """The codec of a class that msgspec leaves to its hooks."""
    if codec := getattr(stranger, "__perdure_codec__", None):
        return codec
    if is_pydantic_class(stranger):
        return _pydantic_class_codec(stranger)
    if isinstance(stranger, type) and hasattr(cast(Any, stranger), "__fspath__"):
        return _path_codec(stranger)
    raise TypeError(f"{show_type(stranger)} has no JSON form")


def _path_codec(path_type: Any) -> Codec:
    def convert(value: JSON) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"Expected a path as `str`, got `{type(value).__name__}`")
        return path_type(value)

    return Codec({"type": "string", "format": "path"}, lambda text: convert(decode_json(text)), convert)


def _choice_codec(members: Sequence[Any]) -> Codec:
    """A union by trial: the member that keeps most of the value, the first of equals."""
    codecs = [_compile(member) for member in members]
    defs: dict[str, JSON] = {}
    schema = assemble({"anyOf": [absorb(codec.schema, defs) for codec in codecs]}, defs)

    def convert(value: JSON) -> Any:
        best, best_kept, complaints = None, -1, list[str]()
        for member, codec in zip(members, codecs, strict=True):
            try:
                decoded = codec.decode(value)
            except ValueError as error:
                complaints.append(f"{show_type(member)}: {error}")
                continue
            kept = _kept(value, decoded)
            if kept > best_kept:
                best, best_kept = decoded, kept
        if best_kept < 0:
            raise ValueError(f"it fits no member of the union; {' '.join(complaints)}")
        return best

    return Codec(schema, lambda text: convert(decode_json(text)), convert)


def _kept(value: JSON, decoded: object) -> float:
    """How much of a value is left in what it was decoded to."""
    plain = to_plain(decoded)
    if plain == value:
        return float("inf")
    if isinstance(value, dict) and isinstance(plain, dict):
        return len(cast("dict[str, JSON]", value).keys() & cast("dict[str, JSON]", plain).keys())
    return 0


@lru_cache(maxsize=256)
def _pydantic_class_codec(annotation: Any) -> Codec:
    """For the hook, which knows the class alone and asks for every value."""
    return _pydantic_codec(annotation)


def _pydantic_codec(annotation: Any) -> Codec:
    try:
        from pydantic import TypeAdapter, ValidationError
    except ImportError:
        raise UsageError(
            f"The type {show_type(annotation)} needs pydantic; run: pip install 'perdure[pydantic]'."
        ) from None
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)

    def convert(value: JSON) -> Any:
        try:
            # JSON and not Python values: only there does strict mode take "2026-01-31" for a date.
            return adapter.validate_json(encode_json(value), strict=True)
        except ValidationError as error:
            raise ValueError(_list_errors(error.errors(include_url=False, include_input=False))) from None

    def plain(value: object) -> JSON:
        return adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings="error")

    defs: dict[str, JSON] = {}
    root = absorb(adapter.json_schema(), defs)
    return Codec(assemble(root, defs), lambda text: convert(decode_json(text)), convert, plain)


def _decode(function: Callable[[Any], Any], value: Any) -> Any:
    try:
        return function(value)
    except msgspec.ValidationError as error:
        raise ValueError(_sentence(str(error))) from None
    except msgspec.DecodeError as error:
        raise ValueError(f"the text is not valid JSON ({error}).") from None
    except RecursionError:
        raise ValueError("the value is nested too deeply.") from None
    except ValueError:
        raise
    except Exception as error:  # validators and __post_init__ are user code
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _sentence(text: str) -> str:
    """msgspec's words, the place first: "Expected `int` - at `$.cents`" -> "`cents`: Expected `int`."."""
    message, mark, path = text.rpartition(" - at `")
    if not mark:
        return _end(text)
    place = path.rstrip("`").removeprefix("$").removeprefix(".")
    return _end(f"`{place}`: {message}" if place else message)


def _list_errors(errors: Sequence[Mapping[str, Any]]) -> str:
    shown = [
        _end(f"`{'.'.join(map(str, error['loc']))}`: {error['msg']}" if error["loc"] else str(error["msg"]))
        for error in errors[:5]
    ]
    return " ".join(shown + [f"({len(errors) - 5} more.)"] * (len(errors) > 5))


def _end(text: str) -> str:
    return text if text.endswith((".", ")")) else f"{text}."

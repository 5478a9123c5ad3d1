"""Values -> JSON: structs, dataclasses, pydantic models, enums, dates, sets, paths, all with a plain form."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence, Set, ValuesView
from typing import Any, cast

import msgspec

from perdure.core.codec import decode_json, encode_json
from perdure.core.messages import JSON


def to_json(value: object) -> str:
    """JSON text; a ValueError says why a value has none."""
    return _write(value).decode()


def to_plain(value: object) -> JSON:
    """Plain data, exactly as it would be read back; a ValueError says why a value has none."""
    return decode_json(_write(value))


def is_pydantic_class(candidate: Any) -> bool:
    """Whether pydantic has to read and write it; asked without importing pydantic."""
    return isinstance(candidate, type) and (
        hasattr(candidate, "__get_pydantic_core_schema__")
        or hasattr(candidate, "__pydantic_validator__")
        or hasattr(candidate, "__pydantic_config__")
    )


def _write(value: object) -> bytes:
    try:
        try:
            return msgspec.json.encode(value, enc_hook=_encode)
        except UnicodeEncodeError:
            return encode_json(msgspec.to_builtins(value, str_keys=True, enc_hook=_encode))
    except Exception as error:  # noqa: BLE001 - properties and serializers of the user's types run here
        kind = type(value).__name__
        raise ValueError(f"The {kind} cannot be written as JSON ({error}); give text or plain data.") from None


def _encode(value: Any) -> Any:
    """What msgspec does not know by itself."""
    if is_pydantic_class(cast(Any, type(value))) and "pydantic_core" in sys.modules:
        return sys.modules["pydantic_core"].to_jsonable_python(value)
    match value:
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case os.PathLike():
            return os.fspath(cast("os.PathLike[str]", value))
        case Mapping():
            return dict(cast("Mapping[Any, Any]", value))
        case Sequence() | Set() | ValuesView() | deque():
            return list(cast("Sequence[Any]", value))
        case _:
            raise TypeError(f"{type(value).__name__} has no JSON form")

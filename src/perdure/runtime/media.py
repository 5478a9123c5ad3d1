"""Images, documents and tool results -> the parts that models read, and the artifacts that hold their bytes.

Rule 1: a part that names an artifact is made together with its bytes. Rule 2: text leaves here without lone
surrogates, so that the live state equals the one folded from the log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, TypeAlias, cast

import msgspec

from perdure.core.codec import digest_of
from perdure.core.errors import NotFound, UsageError
from perdure.core.messages import Media, Part, Text
from perdure.ports import Store
from perdure.runtime.plain import to_json

MAX_BYTES = 50_000_000
EMPTY_INPUT = "The input is empty; say what the agent shall do."

Source: TypeAlias = str | os.PathLike[str] | bytes

_IMAGE_STARTS = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


class Artifact(msgspec.Struct, frozen=True, gc=False):
    """Bytes beside the log, as `ctx.artifacts.put` returns them; a tool may return it as its result."""

    digest: str
    media_type: str
    size: int
    name: str = ""


class Artifacts:
    """The artifacts of one call: kept here by `put`, written by the runtime before the call's outcome."""

    __slots__ = ("_kept", "_session", "_store")

    def __init__(self, store: Store | None = None, session: str = "") -> None:
        self._store = store
        self._session = session
        self._kept: dict[str, bytes] = {}

    def put(self, data: bytes, media_type: str = "application/octet-stream", name: str = "") -> Artifact:
        digest = digest_of(data)
        self._kept[digest] = data
        return Artifact(digest, media_type, len(data), name)

    async def get(self, digest: str) -> bytes:
        """The bytes of an artifact of this session; NotFound if there is none."""
        data = self._kept.get(digest)
        if data is not None:
            return data
        if self._store is None:
            raise NotFound(f"There is no artifact {digest!r}; take a digest that put() returned.")
        return await self._store.load_artifact(self._session, digest)

    def __contains__(self, digest: object) -> bool:
        return digest in self._kept

    async def flush(self) -> None:
        """Writes what was put, for the runtime: before the record that names it."""
        if self._store is None or not self._kept:
            return
        for digest, data in list(self._kept.items()):
            await self._store.save_artifact(self._session, digest, data)


class Image:
    """A picture for the model: a path or bytes, read at once."""

    __slots__ = ("data", "media_type", "name")

    def __init__(self, source: Source, media_type: str | None = None, name: str = "") -> None:
        self.data, self.name = _read("Image", source, name)
        guessed = media_type or _guess_image(self.data, self.name)
        if guessed is None or not guessed.startswith("image/"):
            shown = self.name or f"{len(self.data)} bytes"
            what = guessed or "the content"
            raise UsageError(f"Image({shown!r}): {what} is no known kind of image; pass media_type='image/…'.")
        self.media_type = guessed


class Document:
    """A file for the model: a path or bytes, read at once."""

    __slots__ = ("data", "media_type", "name")

    def __init__(self, source: Source, media_type: str | None = None, name: str = "") -> None:
        self.data, self.name = _read("Document", source, name)
        self.media_type = media_type or _guess_document(self.data, self.name)


InputItem: TypeAlias = str | Image | Document
Input: TypeAlias = InputItem | Sequence[InputItem]


def to_parts(value: Input) -> tuple[tuple[Part, ...], dict[str, bytes]]:
    """The parts of an input, and the bytes of the artifacts that they name."""
    artifacts = Artifacts()
    items = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else (value,)
    parts: list[Part] = []
    kept: dict[str, bytes] = {}
    for item in items:
        match item:
            case str():
                if item.strip():
                    parts.append(Text(clean_text(item)))
            case Image() | Document():
                part = _keep(item, artifacts)
                kept[part.artifact] = item.data
                parts.append(part)
            case _:
                kind = type(cast(object, item)).__name__
                raise UsageError(f"An input of type {kind} is refused; pass text, Image(…), Document(…) or a list.")
    if not parts:
        raise UsageError(EMPTY_INPUT)
    return tuple(parts), kept


def result_parts(value: object, artifacts: Artifacts) -> tuple[Part, ...]:
    """The parts of a tool's result; their bytes go into `artifacts`. ValueError if no model can read it."""
    whole = value
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        if any(isinstance(item, Image | Document | Artifact | bytes) for item in items):
            return tuple(_result_part(item, artifacts) for item in items)
    return (_result_part(whole, artifacts),)


def clean_text(text: str) -> str:
    """The text with U+FFFD for every lone surrogate, as the log would keep it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _result_part(value: object, artifacts: Artifacts) -> Part:
    match value:
        case None:
            return Text("Done; the call returned no value (null).")
        case str():
            return Text(clean_text(str(value)) or "(an empty text)")
        case Image() | Document():
            return _keep(value, artifacts)
        case bytes():
            if _text_of(value) is None:
                raise ValueError(
                    f"The tool returned {len(value)} bytes that are no text; "
                    "it has to return Image(…) or Document(…) with a media type."
                )
            return _keep(Document(value), artifacts) if value else Text("(an empty text)")
        case Artifact():
            if value.digest not in artifacts:
                raise ValueError(f"The tool returned the artifact {value.digest}, which this call did not put.")
            return Media(_kind(value.media_type), value.digest, value.media_type, value.size, value.name)
        case _:
            return Text(to_json(value))


def _keep(media: Image | Document, artifacts: Artifacts) -> Media:
    kept = artifacts.put(media.data, media.media_type, media.name)
    kind = "image" if isinstance(media, Image) else "document"
    return Media(kind, kept.digest, kept.media_type, kept.size, kept.name)


def _kind(media_type: str) -> Literal["image", "document"]:
    return "image" if media_type.startswith("image/") else "document"


def _read(what: str, source: Source, name: str) -> tuple[bytes, str]:
    if isinstance(source, bytes):
        data, shown = source, name or "bytes"
    else:
        shown = os.fspath(source)
        data = _read_file(what, shown)
        name = name or os.path.basename(shown)
    if not data:
        raise UsageError(f"{what}({shown!r}): it is empty; pass one with content.")
    if len(data) > MAX_BYTES:
        raise UsageError(f"{what}({shown!r}): it is too large; pass at most {MAX_BYTES:,} bytes.")
    return data, name


def _read_file(what: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"{what}({path!r}): there is no such file; pass a path that exists, or bytes.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{what}({path!r}): the file cannot be read ({reason}); pass another.") from None


def _guess_image(data: bytes, name: str) -> str | None:
    for start, media_type in _IMAGE_STARTS:
        if data.startswith(start):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return _guess_by_name(name)


def _guess_document(data: bytes, name: str) -> str:
    if data.startswith(b"%PDF-"):
        return "application/pdf"
    if by_name := _guess_by_name(name):
        return by_name
    text = _text_of(data)
    if text is None:
        return _guess_image(data, "") or "application/octet-stream"
    return "application/json" if text.lstrip()[:1] in ("{", "[") and _is_json(data) else "text/plain"


def _guess_by_name(name: str) -> str | None:
    # The import costs more than all else here and most names come with telling bytes.
    import mimetypes

    return mimetypes.guess_type(name)[0] if name else None


def _text_of(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return False
    return True

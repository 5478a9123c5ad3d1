"""The events of an answer in OpenAI's formats: server-sent ones, or the one JSON body that some servers send."""

from __future__ import annotations

from perdure.core.errors import ModelError
from perdure.models.wires.sse import BOM, MAX_EVENT, EventSplitter

_SPACE = b" \t\r\n"


class Events:
    """`is_plain`: None until the first byte that is no space has told which of the two it is."""

    __slots__ = ("_body", "_splitter", "is_plain")

    def __init__(self) -> None:
        self.is_plain: bool | None = None
        self._splitter = EventSplitter()
        self._body = bytearray()

    def split(self, data: bytes) -> list[bytes]:
        """The events that these bytes complete; a plain body whenever it might be whole."""
        body = self._body
        if self.is_plain is None and not body and data.startswith(b"data:"):
            self.is_plain = False
        if self.is_plain is False:
            return self._splitter.split(data)
        body += data
        if self.is_plain is None:
            start = bytes(body[:64]).removeprefix(BOM).lstrip(_SPACE)
            if (not start and len(body) < 64) or BOM.startswith(body):
                return []
            self.is_plain = start.startswith(b"{")
            if not self.is_plain:
                return self._splitter.split(bytes(body))
        if len(body) > MAX_EVENT:
            raise ModelError(f"The model sent an answer of more than {MAX_EVENT} bytes.", kind="cut")
        # Only the end of the bytes ends a body; until then a brace may close it, and whoever reads it will see.
        return [self._whole()] if data.rstrip(_SPACE).endswith(b"}") else []

    def finish(self) -> list[bytes]:
        """What the end of the bytes completes."""
        return [self._whole()] if self.is_plain else self._splitter.finish()

    def _whole(self) -> bytes:
        return bytes(self._body).removeprefix(BOM)

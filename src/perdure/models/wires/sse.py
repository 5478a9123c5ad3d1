"""Server-sent events: bytes in any pieces -> the data of each event. Names, ids and comments are left out.

Every format says in its data what an event is. Invariant: the same bytes give the same events however they were cut.
"""

from __future__ import annotations

from perdure.core.errors import ModelError

MAX_EVENT = 8 * 1024 * 1024
BOM = b"\xef\xbb\xbf"


class EventSplitter:
    """Holds at most one unfinished event, of at most MAX_EVENT bytes."""

    __slots__ = ("_begun", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._begun = False

    def split(self, data: bytes) -> list[bytes]:
        """The data of the events that these bytes complete."""
        rest = self._rest
        if not self._begun:
            data = self._skip_bom(data)
        if not rest and b"\r" not in data and (end := data.rfind(b"\n\n")) >= 0:
            # Nearly every read ends with an event: then nothing of it has to be kept.
            rest += data[end + 2 :]
            return _data_of_all(data[:end])
        # A CR at the end of what was read may be half of a line end; it waits for its other half.
        searched = max(0, len(rest) - 3)
        rest += data
        if rest.find(b"\r", searched) >= 0:
            held = rest.endswith(b"\r")
            lines = bytes(rest[:-1] if held else rest).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            rest[:] = lines + b"\r" if held else lines
            searched = 0
        end = rest.rfind(b"\n\n", searched)
        if end < 0:
            if len(rest) > MAX_EVENT:
                raise ModelError(f"The model sent an event of more than {MAX_EVENT} bytes.", kind="cut")
            return []
        blocks = bytes(rest[:end])
        del rest[: end + 2]
        return _data_of_all(blocks)

    def finish(self) -> list[bytes]:
        """What was left without its blank line when the bytes ended."""
        block = bytes(self._rest).replace(b"\r", b"\n").strip(b"\n")
        self._rest.clear()
        found = _data_of(block) if block else None
        return [] if found is None else [found]

    def _skip_bom(self, data: bytes) -> bytes:
        if not self._rest and data[:1] not in (b"", BOM[:1]):
            self._begun = True
            return data
        whole = bytes(self._rest) + data
        self._rest.clear()
        if len(whole) < 3 and BOM.startswith(whole):
            self._rest += whole
            return b""
        self._begun = True
        return whole.removeprefix(BOM)


def _data_of_all(blocks: bytes) -> list[bytes]:
    return [found for block in blocks.split(b"\n\n") if (found := _data_of(block)) is not None]


def _data_of(block: bytes) -> bytes | None:
    """The data lines of one event, joined; None where it has none."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None

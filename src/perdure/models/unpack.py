"""Unpacks gzip and deflate in bounded pieces, for servers that compress although they were asked not to."""

from __future__ import annotations

import zlib

from perdure.core.errors import ModelError


class Unpacker:
    """Packed bytes are put in, and pieces of at most `limit` unpacked bytes are taken out, however small the packed."""

    ENCODINGS = ("gzip", "x-gzip", "deflate")
    __slots__ = ("_limit", "_packed", "_unpacking", "_zlib")

    def __init__(self, encoding: str, limit: int) -> None:
        self._limit = limit
        self._packed = b""
        self._zlib = zlib.decompressobj(31) if encoding != "deflate" else None
        self._unpacking = False

    def put(self, packed: bytes) -> None:
        if self._zlib is None:
            # "deflate" means zlib, and some servers leave its header out.
            self._zlib = zlib.decompressobj(15 if packed[0] & 0x0F == 8 else -15)
        self._packed += packed
        self._unpacking = True

    def take(self) -> bytes:
        """The next piece; nothing if more has to be put in first."""
        if self._zlib is None or not self._unpacking:
            return b""
        try:
            data = self._zlib.decompress(self._packed, self._limit)
        except zlib.error:
            data = None
        if data is None:
            raise ModelError("The answer cannot be decompressed.", kind="cut")
        self._packed = self._zlib.unconsumed_tail
        # A full piece may not be all that the packed bytes hold, even if they are used up.
        self._unpacking = len(data) == self._limit or bool(self._packed)
        return data

    def finish(self) -> None:
        """The packed bytes have ended; a ModelError if they ended too early."""
        if self._zlib is None or not self._zlib.eof:
            raise ModelError("The answer broke off before its end.", kind="cut")

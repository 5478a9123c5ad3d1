"""One value out of a JSON object that is still being written: its characters, as they come.

Rule: what does not look like the object that was asked for is passed on as it is, for others to judge.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

_RUN = re.compile(r'[^"\\]*')
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[\"\\/bfnrt]"
)
_BRACKETS = re.compile(r'["\[\]{}]')
_SCALAR = re.compile(r"[^,}\]\s]*")
_LONGEST_ESCAPE = 12
_SPACE = " \t\r\n"


class ValueStream:
    """The value of an object's first key, if that key is one of `keys`.

    A string is given without its quotes and escapes, unless `is_raw`. `key` is "" until it is known; `is_foreign`: the
    text is no such object.
    """

    __slots__ = (
        "_at",
        "_depth",
        "_in_string",
        "_is_raw",
        "_is_string",
        "_keys",
        "_text",
        "is_foreign",
        "is_whole",
        "key",
    )

    def __init__(self, keys: Sequence[str], *, is_raw: bool) -> None:
        self.key = ""
        self.is_foreign = False
        self.is_whole = False
        self._keys = keys
        self._is_raw = is_raw
        self._is_string = False
        self._text = ""
        self._at = 0
        self._depth = 0
        self._in_string = False

    def add(self, piece: str) -> str:
        """What these characters say more of the value."""
        if self.is_foreign:
            return piece
        if self.is_whole:
            return ""
        self._text = self._text[self._at :] + piece
        self._at = 0
        if not self.key and not self._find_key():
            return self._text if self.is_foreign else ""
        return self._read_string() if self._is_string else self._read_raw()

    @property
    def undecided(self) -> str:
        """What was held back because its key had not come."""
        return "" if self.key or self.is_foreign else self._text

    def _find_key(self) -> bool:
        """Past the colon and up to the value's first character, or not yet."""
        text = self._text
        for key in self._keys:
            found = re.match(rf'\s*\{{\s*"{key}"\s*:\s*(?=\S)', text)
            if found:
                self.key, self._at = key, found.end()
                self._is_string = text[self._at] == '"' and not self._is_raw
                self._at += self._is_string
                return True
        dense = "".join(text.split())
        self.is_foreign = not any(f'{{"{key}":'.startswith(dense) for key in self._keys)
        return False

    def _read_string(self) -> str:
        text, at, said = self._text, self._at, list[str]()
        while True:
            end = _end_of(_RUN, text, at)
            said.append(text[at:end])
            at = end
            if at == len(text):
                break
            if text[at] == '"':
                self.is_whole = True
                break
            escape = _ESCAPE.match(text, at)
            if escape is None and len(text) - at < _LONGEST_ESCAPE:
                break
            said.append(_unescape(escape.group()) if escape else "\ufffd")
            at = escape.end() if escape else at + (6 if text[at + 1] == "u" else 2)
        self._at = at
        return "".join(said)

    def _read_raw(self) -> str:
        text, start = self._text, self._at
        at = start
        if self._depth == 0 and not self._in_string and text[at : at + 1] not in ('"', "[", "{"):
            at = _end_of(_SCALAR, text, at)
            self.is_whole = at < len(text)
            # A number may go on in the next piece, which then begins in the middle of it.
            self._at = at
            return text[start:at]
        while not self.is_whole:
            if self._in_string:
                at = self._end_string(at)
                if self._in_string:
                    break
            elif (found := _BRACKETS.search(text, at)) is not None:
                at = found.end()
                self._in_string = found.group() == '"'
                self._depth += 1 if found.group() in "[{" else -1 if found.group() in "]}" else 0
            else:
                at = len(text)
                break
            self.is_whole = self._depth == 0 and not self._in_string
        self._at = at
        return text[start:at]

    def _end_string(self, at: int) -> int:
        """Behind the string's closing quote, or as far as can be told."""
        text = self._text
        while True:
            at = _end_of(_RUN, text, at)
            if at == len(text):
                return at
            if text[at] == '"':
                self._in_string = False
                return at + 1
            if at + 1 == len(text):
                return at
            at += 2


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _unescape(escape: str) -> str:
    try:
        return msgspec.json.decode(f'"{escape}"', type=str)
    except ValueError:
        # Half of a surrogate pair.
        return "\ufffd"

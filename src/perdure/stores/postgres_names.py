"""Names as PostgreSQL keeps them: readable text for people, digests for indexes.

Rule: two names are kept alike only if they are the same.
"""

from __future__ import annotations

from hashlib import blake2b


def key(*names: str) -> bytes:
    """A digest of the names, each with its length."""
    parts = [name.encode() for name in names]
    return blake2b(b"".join([b"%d:%b" % (len(part), part) for part in parts]), digest_size=16).digest()


def kept(name: str) -> str:
    """PostgreSQL's text holds anything but U+0000."""
    if "\\" not in name and "\0" not in name:
        return name
    return name.replace("\\", "\\\\").replace("\0", "\\0")


def meant(name: str) -> str:
    if "\\" not in name:
        return name
    return "\\".join(part.replace("\\0", "\0") for part in name.split("\\\\"))

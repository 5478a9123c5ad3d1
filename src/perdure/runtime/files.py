"""Files as they are and as they were: what a trigger of files compares.

Rule: a change is a difference between two looks, never a message that could get lost; so it counts once, whoever looks,
and also if nobody looked for a while.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

import msgspec

from perdure.core.codec import digest_of, encode_json
from perdure.core.errors import NotFound, UsageError
from perdure.core.specs import Files
from perdure.ports import Store
from perdure.runtime.media import clean_text

MOST_FILES = 20_000
LEFT_ALONE = frozenset(("__pycache__", "node_modules"))
"""Folders that are not looked into, beside those whose names begin with a dot."""

Listing: TypeAlias = dict[str, tuple[int, int]]
"""By path: time of the last change in nanoseconds, and size."""

_decoder = msgspec.json.Decoder(Listing)


class Changed(msgspec.Struct, frozen=True):
    """A file that was added, changed or deleted since the last look, at that time as far as it is known."""

    path: str
    what: Literal["added", "modified", "deleted"]
    at: float


def absolute(files: Files) -> Files:
    """The same, wherever a process stands that watches them."""
    if not isinstance(files.path, str | os.PathLike) or not str(files.path).strip():  # pyright: ignore[reportUnnecessaryIsInstance] - user code
        raise UsageError(f"Files({files.path!r}): give the path of a file or folder.")
    if not isinstance(files.pattern, str) or not files.pattern:  # pyright: ignore[reportUnnecessaryIsInstance] - user code
        raise UsageError(f"Files(pattern={files.pattern!r}): give a pattern like '*.csv'.")
    path = os.path.abspath(os.path.expanduser(os.fspath(files.path)))
    return Files(clean_text(path), clean_text(files.pattern), bool(files.is_recursive), bool(files.with_deleted))


def scan(files: Files) -> Listing:
    """The files that fit, as they are now; a UsageError says why they cannot be looked at."""
    if os.path.isfile(files.path):
        found = os.stat(files.path)
        return {files.path: (found.st_mtime_ns, found.st_size)}
    if not os.path.isdir(files.path):
        raise UsageError(f"There is no file or folder {files.path!r} here; make it, or set the trigger anew.")
    listing: Listing = {}
    for entry in _walk(files.path, files.is_recursive):
        name = os.path.relpath(entry.path, files.path)
        if not fnmatchcase(entry.name, files.pattern) and not fnmatchcase(name, files.pattern):
            continue
        try:
            found = entry.stat()
        except OSError:
            continue  # gone since we saw its name
        listing[clean_text(entry.path)] = (found.st_mtime_ns, found.st_size)
        if len(listing) > MOST_FILES:
            raise UsageError(f"{files.path!r} has more than {MOST_FILES:,} files that fit; narrow the pattern.")
    return listing


def compare(files: Files, before: Listing, after: Listing, now: float) -> list[Changed]:
    """What has changed, the oldest first."""
    changes: list[Changed] = []
    for path, (at, size) in after.items():
        if before.get(path) != (at, size):
            changes.append(Changed(path, "modified" if path in before else "added", _noticed(path, at, now)))
    if files.with_deleted:
        changes += [Changed(path, "deleted", _emptied(path, now)) for path in before if path not in after]
    return sorted(changes, key=lambda change: (change.at, change.path))


async def load_listing(store: Store, uid: str, artifact: str) -> Listing:
    """What was last seen; nothing if that is not known any more."""
    if not artifact:
        return {}
    try:
        return _decoder.decode(zlib.decompress(await store.load_artifact(uid, artifact)))
    except (NotFound, zlib.error, ValueError):
        return {}


async def save_listing(store: Store, uid: str, listing: Listing) -> str:
    """The artifact that holds it: there before any record names it."""
    data = zlib.compress(encode_json(listing))
    digest = digest_of(data)
    await store.save_artifact(uid, digest, data)
    return digest


def _walk(folder: str, is_recursive: bool) -> Iterator[os.DirEntry[str]]:
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue  # gone, or not ours to read: its files are not there for us
        for entry in found:
            if entry.name.startswith(".") or entry.name in LEFT_ALONE:
                continue
            if entry.is_dir(follow_symlinks=False):
                folders += [entry.path] if is_recursive else []
            elif entry.is_file():
                yield entry


def _noticed(path: str, at: int, now: float) -> float:
    """When the file came to be what it is: a moved file keeps the time of its contents."""
    try:
        return min(now, max(at / 1e9, os.stat(path).st_ctime))
    except OSError:
        return now


def _emptied(path: str, now: float) -> float:
    try:
        return min(now, os.stat(os.path.dirname(path)).st_mtime)
    except OSError:
        return now

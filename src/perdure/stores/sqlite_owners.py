"""Who is alive: one locked file per owner beside the database, with a heartbeat in it.

Rule 1: the lock tells at once that a process died, the heartbeat that it hangs. Rule 2: a file is removed
only under its lock, and a lock counts only on the file that still bears the name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from hashlib import blake2b
from pathlib import Path

from perdure.core.errors import StoreError

_DIGITS = 20


class Owners:
    """The owners of one database; its own are those that joined through it."""

    def __init__(self, folder: str, *, dead_after: float) -> None:
        self._folder = Path(folder)
        self._dead_after = dead_after
        self._own: dict[str, int] = {}
        self._about: dict[str, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self._own)

    def __contains__(self, owner: str) -> bool:
        return owner in self._own

    def join(self, owner: str, about: bytes = b"") -> None:
        if owner in self._own:
            return
        try:
            self._folder.mkdir(exist_ok=True)
            self._sweep()
            lock = self._locked(self._path(owner))
        except OSError as error:
            raise StoreError(f"{str(self._folder)!r} cannot be written ({error}); allow this user to.") from error
        if lock is None:
            raise StoreError(f"{owner!r} has joined from elsewhere; give every process a name of its own.")
        os.ftruncate(lock, 0)
        _write_beat(lock, owner, about)
        self._about[owner] = about
        self._own[owner] = lock

    def leave(self, owner: str) -> None:
        lock = self._own.pop(owner, None)
        self._about.pop(owner, None)
        if lock is not None:
            with contextlib.suppress(OSError):
                self._path(owner).unlink()
            os.close(lock)

    def leave_all(self) -> None:
        for owner in list(self._own):
            self.leave(owner)

    def beat(self) -> None:
        for owner, lock in list(self._own.items()):
            with contextlib.suppress(OSError):  # a full disk: the others go by the last beat that was written
                _write_beat(lock, owner, self._about.get(owner, b""))

    def living(self) -> dict[str, bytes]:
        """Everybody who holds a lock and still beats, with what they said of themselves."""
        owners = {owner: self._about.get(owner, b"") for owner in list(self._own)}
        for path in self._files():
            found = self._living_owner(path)
            if found is not None:
                owners.setdefault(*found)
        return owners

    def is_living(self, owner: str | None) -> bool:
        return owner is not None and (owner in self._own or self._living_owner(self._path(owner)) is not None)

    def _path(self, owner: str) -> Path:
        return self._folder / f"{blake2b(owner.encode(), digest_size=16).hexdigest()}.lock"

    def _files(self) -> list[Path]:
        try:
            return list(self._folder.glob("*.lock"))
        except OSError:
            return []

    def _living_owner(self, path: Path) -> tuple[str, bytes] | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if _lock(descriptor, fcntl.LOCK_SH):
                return None
            beat, _, named = os.read(descriptor, 1 << 16).partition(b"\n")
            size, _, rest = named.partition(b"\n")
            if not (beat.isdigit() and size.isdigit() and _now() - int(beat) <= self._dead_after * 1e9):
                return None
            return rest[: int(size)].decode(), rest[int(size) :]
        finally:
            os.close(descriptor)

    def _locked(self, path: Path) -> int | None:
        """The file's descriptor, locked for as long as it is open; None if somebody else has it."""
        deadline = time.monotonic() + 1.0
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            locked = _lock(descriptor, fcntl.LOCK_EX)
            if locked and _is_at(descriptor, path):
                return descriptor
            os.close(descriptor)
            # Somebody may just be looking whether it is free, or removing it.
            if not locked and time.monotonic() > deadline:
                return None
            time.sleep(0.005)

    def _sweep(self) -> None:
        """Removes what dead owners left."""
        for path in self._files():
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if _lock(descriptor, fcntl.LOCK_EX) and _is_at(descriptor, path):
                        path.unlink()
                finally:
                    os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _write_beat(descriptor: int, owner: str, about: bytes) -> None:
    name = owner.encode()
    os.pwrite(descriptor, b"%0*d\n%d\n" % (_DIGITS, _now(), len(name)) + name + about, 0)


def _now() -> int:
    """Nanoseconds that all processes of one machine share, and that stand still while it sleeps."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

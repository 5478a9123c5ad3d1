"""Where large artifacts lie outside of a database: a folder, or an S3-compatible store, through obstore."""

from __future__ import annotations

from collections.abc import Awaitable
from importlib import import_module
from typing import Any, TypeVar

from perdure.core.errors import NotFound, StoreError, UsageError

T = TypeVar("T")

RETRY_AFTER = 2.0


class Places:
    """`file:///FOLDER`, or `s3://BUCKET/PREFIX` with the usual AWS_… settings in the environment."""

    def __init__(self, url: str) -> None:
        try:
            self._obstore = import_module("obstore")
            stores: Any = import_module("obstore.store")
        except ImportError:
            raise UsageError("Artifacts outside of the database need obstore; install perdure[artifacts].") from None
        try:
            if url.startswith("file://"):
                self._store = stores.LocalStore(url.removeprefix("file://"), mkdir=True)
            else:
                self._store = stores.from_url(url)
        except Exception as error:  # noqa: BLE001 - whatever obstore says of an address
            said = _first_line(error)
            raise UsageError(f"{url!r} is no place for artifacts ({said}); give file:///… or s3://….") from None

    async def put(self, place: str, data: bytes) -> None:
        await _spoken(self._obstore.put_async(self._store, place, data))

    async def get(self, place: str) -> bytes:
        found = await _spoken(self._obstore.get_async(self._store, place))
        return bytes(await _spoken(found.bytes_async()))

    async def remove(self, place: str) -> None:
        """What is not there is removed."""
        try:
            await _spoken(self._obstore.delete_async(self._store, place))
        except NotFound:
            return


async def _spoken(work: Awaitable[T]) -> T:
    try:
        return await work
    except FileNotFoundError:
        raise NotFound("It is not in the artifacts' place.") from None
    except Exception as error:
        said = _first_line(error)
        raise StoreError(
            f"The artifacts' place cannot serve this now ({said}); try again.", retry_after=RETRY_AFTER
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__

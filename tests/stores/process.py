"""A process of its own on a shared store; driven by lines on its standard input, answering with lines."""

from __future__ import annotations

import asyncio
import sys

from perdure.core.errors import Conflict, PerdureError, StaleEpoch
from perdure.ports import Store
from perdure.stores.sqlite import SqliteStore
from perdure.testing.store_samples import batch, first


async def append(store: Store, session: str, data: str, epoch: int | None) -> None:
    while True:
        row = await store.get(session)
        assert row is not None
        try:
            return await store.append(batch(session, row.head, data, epoch=epoch))
        except StaleEpoch:
            raise
        except Conflict:
            continue


async def obey(store: Store, line: list[str], epochs: dict[str, int]) -> str:
    match line:
        case ["join", owner]:
            await store.join(owner)
        case ["open", session]:
            await store.append(first(session, session))
        case ["claim", session, owner]:
            claim = await store.claim(session, owner)
            epochs[session] = claim.epoch if claim else 0
            return "claimed" if claim else "owned"
        case ["drive", session, count]:
            for number in range(int(count)):
                await append(store, session, f"driver-{number}", epochs[session])
        case ["send", session, count]:
            for number in range(int(count)):
                await append(store, session, f"command-{number}", None)
        case ["fill", session, size]:
            row = await store.get(session)
            await store.append(batch(session, row.head if row else 0, "x" * int(size)))
        case _:
            raise ValueError(line)
    return "ok"


async def main(path: str, beat: float) -> None:
    store = SqliteStore(path, beat=beat)
    await store.open()
    print("ready", flush=True)
    epochs: dict[str, int] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            print(await obey(store, line.split(), epochs), flush=True)
        except PerdureError as error:
            print(type(error).__name__, flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))

"""All benchmarks, one after the other: `make bench`."""

from __future__ import annotations

import asyncio

from benchmarks import append, footprint, fork, http_clients, rounds, turns


async def main() -> None:
    await turns.main(400)
    await footprint.main()
    await append.main()
    await fork.main()
    await http_clients.main()
    await rounds.main()


if __name__ == "__main__":
    asyncio.run(main())

"""A worker whose agent asks a provider on the loopback; `on` or `off`, quotas are shared or not."""

from __future__ import annotations

import asyncio
import sys

from perdure import Agent, Runtime, models
from perdure.stores.postgres import PostgresStore


async def main(store: str, schema: str, provider: str, shares: str) -> None:
    model = models.openai("m", base_url=provider, api_key="a key that is shared")
    agent = Agent(name="caller", model=model)
    kept = PostgresStore(store, schema=schema, connections=3, quotas=shares == "on")
    async with Runtime(kept, agents=[agent]):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""Providers and clients that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from perdure.models.http import HttpClient
from perdure.testing.provider import Provider, Script

Serve = Callable[[Script], Awaitable[Provider]]


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    client = HttpClient()
    yield client
    await client.close()


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Opens providers that end with the test."""
    opened: list[Provider] = []

    async def open_provider(script: Script) -> Provider:
        opened.append(await Provider(script).__aenter__())
        return opened[-1]

    yield open_provider
    for provider in opened:
        await provider.__aexit__()

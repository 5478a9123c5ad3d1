"""What models cost and how much they read, from data that comes with genai-prices; nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from perdure.core.messages import Usage
from perdure.models.http_route import host_of, is_loopback

Price: TypeAlias = Callable[[Usage], float | None]

MILLION = 1_000_000
PROVIDERS = {"openai-responses": "openai"}
"""Formats whose provider has another name in the price list."""


class Rate(msgspec.Struct, frozen=True):
    """US dollars a token, for requests whose input is longer than `above` tokens."""

    above: int
    input: float
    output: float
    cached: float
    cache_written: float


class Facts(msgspec.Struct, frozen=True):
    """`rates` from the shortest input to the longest; none where the price is unknown."""

    rates: tuple[Rate, ...] = ()
    window: int | None = None


def cost_of(provider: str, model: str, usage: Usage) -> float | None:
    """The price list's own figure."""
    return cost_at(facts_of(provider, model).rates, usage)


def flat_price(input: float, output: float) -> Price:
    """A price of one's own: US dollars a million tokens, in and out."""
    rates = (Rate(0, input / MILLION, output / MILLION, input / MILLION, input / MILLION),)
    return lambda usage: cost_at(rates, usage)


def window_of(provider: str, model: str) -> int | None:
    return facts_of(provider, model).window


def cost_at(rates: tuple[Rate, ...], usage: Usage) -> float | None:
    """Whoever crosses a threshold pays the higher rate for everything."""
    if not rates:
        return None
    rate = rates[0]
    for higher in rates[1:]:
        if usage.input > higher.above:
            rate = higher
    plain = max(0, usage.input - usage.cached - usage.cache_written)
    cost = plain * rate.input + usage.cached * rate.cached + usage.cache_written * rate.cache_written
    return round(cost + usage.output * rate.output, 12)


@lru_cache(maxsize=1000)
def facts_of(provider: str, model: str) -> Facts:
    """`provider` is a name, or the address of a server; those on this machine are in no list, and need not load one."""
    url = provider if "://" in provider else None
    if url is not None and is_loopback(host_of(url)):
        return Facts()
    from genai_prices.data_snapshot import get_snapshot

    name = None if url else PROVIDERS.get(provider, provider)
    try:
        _, found = get_snapshot().find_provider_model(model, None, name, url)
    except LookupError:
        return Facts()
    return Facts(_read_rates(found.get_prices(datetime.now(UTC))), found.context_window)


def _read_rates(price: Any) -> tuple[Rate, ...]:
    """A list without a price for input or output is no price."""
    names = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
    columns = [getattr(price, name, None) for name in names]
    if columns[0] is None or columns[1] is None:
        return ()
    starts = sorted({0, *(tier.start for column in columns for tier in getattr(column, "tiers", ()))})
    return tuple(_read_rate(columns, start) for start in starts)


def _read_rate(columns: list[Any], above: int) -> Rate:
    input, output, cached, written = (_price_at(column, above) for column in columns)
    # Where a list has no price for cached tokens, they cost what others cost.
    return Rate(
        above,
        input or 0.0,
        output or 0.0,
        cached if cached is not None else input or 0.0,
        written if written is not None else input or 0.0,
    )


def _price_at(column: Any, above: int) -> float | None:
    if column is None:
        return None
    price = getattr(column, "base", column)
    for tier in getattr(column, "tiers", ()):
        if tier.start <= above:
            price = tier.price
    return float(price) / MILLION

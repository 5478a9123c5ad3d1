"""Addresses of stores: what is said about a store in its own address, and how an address is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from perdure.core.errors import UsageError

SECRET = "…"


def masked(address: str) -> str:
    """The address without what is secret in it."""
    if address.startswith("sqlite:"):
        return address
    place, mark, query = address.partition("?")
    scheme, sign, rest = place.partition("//" if "//" in place else ":")
    if "@" in query.partition("=")[0]:
        return f"{scheme}{sign}{SECRET}"  # a password with a question mark in it
    at = rest.rfind("@")
    user, colon, _ = rest[: max(at, 0)].partition(":")
    if colon:
        rest = f"{user}:{SECRET}{rest[at:]}"
    return f"{scheme}{sign}{rest}{mark}{'&'.join(map(_masked_option, query.split('&')))}"


def _masked_option(option: str) -> str:
    name, sign, value = option.partition("=")
    if "password" in name.lower() or "secret" in name.lower():
        return f"{name}{sign}{SECRET}"
    return f"{name}{sign}{masked(unquote(value))}" if "@" in unquote(value) else option


def split_options(address: str, kinds: dict[str, Callable[[str], Any]]) -> tuple[str, dict[str, Any]]:
    """The address without the options of these names, and their values; all others stay where they are, as they are."""
    place, _, query = address.partition("?")
    found: dict[str, Any] = {}
    others: list[str] = []
    for option in filter(None, query.split("&")):
        name, _, value = option.partition("=")
        if name not in kinds:
            others.append(option)
            continue
        if name in found:
            raise UsageError(f"The store's address says {name} twice; leave one of them out.")
        try:
            found[name] = kinds[name](unquote(value))
        except ValueError as error:
            raise UsageError(f"The store's address says {option}: {error}.") from None
    return place + ("?" + "&".join(others) if others else ""), found


def whole_number(value: str) -> int:
    if not (value.isascii() and value.isdigit() and 0 < int(value) < 1_000_000_000):
        raise ValueError("write a whole number above 0")
    return int(value)


def seconds(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 1_000_000:
        raise ValueError("write a number of seconds")
    return number


def yes_or_no(value: str) -> bool:
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if value.lower() not in known:
        raise ValueError("write true or false")
    return known[value.lower()]


def text(value: str) -> str:
    if not value:
        raise ValueError("it has no value")
    return value

"""The way to an address: through which proxy, and with which headers. This machine is always reached without one."""

from __future__ import annotations

from base64 import b64encode
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from perdure.core.errors import ModelError

if TYPE_CHECKING:
    from multidict import CIMultiDict
    from yarl import URL


class Route(msgspec.Struct, frozen=True):
    """An address without user and password, what to call it, and what goes with every request to it."""

    url: URL
    where: str
    headers: dict[str, str]
    proxy: URL | None = None
    proxy_headers: CIMultiDict[str] | None = None


class Proxy(msgspec.Struct, frozen=True):
    """`authorization` is the header for the user and password that stood in its URL, or nothing."""

    url: str
    authorization: str


def find_route(url: str) -> Route:
    """Looked up once for an address, for it walks the environment."""
    from multidict import CIMultiDict
    from yarl import URL

    where = host_of(url)
    headers = {"user-agent": "perdure", "content-type": "application/json", "accept-encoding": "identity"}
    plain, authorization = take_user(url)
    if authorization:
        headers["authorization"] = authorization
    scheme = plain.partition(":")[0].lower()
    proxy = find_proxy(scheme, where)
    for_proxy = CIMultiDict({"user-agent": headers["user-agent"]})
    if proxy and proxy.authorization:
        # What travels through a tunnel is not for the proxy.
        (headers if scheme == "http" else for_proxy)["proxy-authorization"] = proxy.authorization
    try:
        address = URL(plain)
        if address.scheme in ("http", "https") and address.raw_host:
            return Route(address, where, headers, URL(proxy.url) if proxy else None, for_proxy if proxy else None)
    except ValueError:
        pass
    raise ModelError("The base_url is no HTTP address; take one like https://host/v1.", kind="not_found")


def host_of(url: str) -> str:
    """The host and port of a URL, to be shown: no user, password or query."""
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{host}:{parts.port}" if parts.port else host or "the model's address"
    except ValueError:
        return "the model's address"


def find_proxy(scheme: str, where: str) -> Proxy | None:
    """For a host (and port) that is reached with this scheme."""
    proxies = getproxies()
    found = proxies.get(scheme) or proxies.get("all")
    if not found or is_loopback(where) or proxy_bypass(where):
        return None
    url, authorization = take_user(found if "://" in found else f"http://{found}")
    if not url.lower().startswith(("http://", "https://")):
        name = f"{scheme.upper()}_PROXY"
        raise ModelError(f"The proxy for {where} is no HTTP proxy; set {name} to one.", kind="not_found")
    return Proxy(url, authorization)


def take_user(url: str) -> tuple[str, str]:
    """The URL without user and password, and the header that says them."""
    scheme, mark, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if not at:
        return url, ""
    name, _, password = user.partition(":")
    basic = b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return f"{scheme}{mark}{host}{slash}{path}", f"Basic {basic}"


def is_loopback(where: str) -> bool:
    """Whether a host (and port) is this machine."""
    try:
        host = urlsplit(f"//{where}").hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

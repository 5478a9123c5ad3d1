"""Endpoints: where a kind of model is served, in which format, and with whose key. Called with a name, it is a model.

What an endpoint needs is imported when it is called; keys and addresses that are not passed in come from the
environment when the first request leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from perdure.core.errors import UsageError
from perdure.core.messages import Usage
from perdure.models.deadlines import Deadlines

if TYPE_CHECKING:
    from perdure.models.account import Account
    from perdure.models.http import HttpClient
    from perdure.models.http_model import HttpModel
    from perdure.models.wires.wire import Wire

Price: TypeAlias = tuple[float, float] | Callable[[Usage], float | None]
"""US dollars per million tokens in and out, or a function."""


@dataclass(frozen=True)
class Endpoint:
    """`wire` is the module of its format, `options` what its servers want otherwise than the format says.

    `elsewhere`: the name under which models of the same format at another base_url go.
    """

    name: str
    wire: str
    url: str = ""
    url_variable: str = ""
    key_variables: tuple[str, ...] = ()
    needs_key: bool = True
    elsewhere: str = ""
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def __call__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        deadlines: Deadlines | None = None,
        price: Price | None = None,
        window: int | None = None,
        client: HttpClient | None = None,
        **options: Any,
    ) -> HttpModel:
        """A model of this endpoint, or of another server at `base_url`; further options are those of its wire."""
        from perdure.models.account import Account, shown_url
        from perdure.models.http_model import HttpModel

        self._check(model=model, base_url=base_url, api_key=api_key)
        if deadlines is not None and not isinstance(cast(object, deadlines), Deadlines):
            raise UsageError(f"{self.name}: deadlines takes Deadlines(…), not {deadlines!r}.")
        if window is not None and type(window) is not int:
            raise UsageError(f"{self.name}: window is a number of tokens, not {window!r}.")
        if not model or not (base_url or self.url):
            raise UsageError(f"{self.name} needs a model's name{'' if self.url else ' and base_url=…'}.")
        is_elsewhere = base_url is not None and base_url.rstrip("/") != self.url
        where = f"@{shown_url(base_url)}" if base_url and is_elsewhere else ""
        name = self.elsewhere if where and self.elsewhere else self.name
        account = Account(
            self.url,
            base_url=base_url,
            api_key=api_key,
            variables=self.key_variables,
            url_variable=self.url_variable,
            needs_key=self.needs_key and not (where and self.elsewhere),
        )
        listed = partial(self._listed, account)
        return HttpModel(
            f"{name}:{model}{where}",
            model,
            self._make_wire(model, where, options),
            account,
            client=client,
            deadlines=deadlines,
            price=_price(listed, model, price),
            window=partial(_window, listed, model, window),
        )

    def _check(self, **texts: object) -> None:
        """An object that holds a key or an address is not shown, only named."""
        for name, value in texts.items():
            if value is not None and not isinstance(value, str):
                raise UsageError(f"{self.name}: {name} is text, not {type(value).__name__}; pass a str.")

    def without_key(self) -> Endpoint:
        """For an address that a string names: keys in the environment are not for whoever listens there."""
        return replace(self, key_variables=(), needs_key=False)

    def _make_wire(self, model: str, where: str, options: dict[str, Any]) -> Wire:
        module: Any = import_module(f"perdure.models.wires.{self.wire}")
        try:
            wire: Wire = module.wire_for(model, **(self.options | options))
            if where:
                # What one server signed or keeps to itself means nothing to another.
                wire = module.wire_for(model, **({"name": wire.name + where} | self.options | options))
            # Also turns lists into tuples: a wire has to be hashable.
            return msgspec.convert(msgspec.to_builtins(wire), type(wire))
        except (TypeError, msgspec.ValidationError) as error:
            raise UsageError(f"{self.name} does not take these options: {error}.") from None

    def _listed(self, account: Account) -> str:
        """Under what the price list knows a server: another address than the provider's has prices of its own."""
        return self.name if account.base_url == self.url else account.base_url


def _price(listed: Callable[[], str], model: str, price: Price | None) -> Callable[[Usage], float | None]:
    from perdure.models.prices import cost_of, flat_price

    if price is None:
        return lambda usage: cost_of(listed(), model, usage)
    if callable(price):
        return price
    match cast(object, price):
        case (int() | float() as input, int() | float() as output):
            return flat_price(input, output)
        case _:
            raise UsageError(f"price={price!r}: give (in, out) in US dollars a million tokens, or a function of Usage.")


def _window(listed: Callable[[], str], model: str, window: int | None) -> int | None:
    from perdure.models.prices import window_of

    return window_of(listed(), model) if window is None else window

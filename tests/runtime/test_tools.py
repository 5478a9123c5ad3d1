"""@tool: from a function to a spec, and from a model's words to a call."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field

from perdure.core.codec import canonical
from perdure.core.errors import UsageError
from perdure.core.specs import ToolSpec
from perdure.runtime.context import ToolContext
from perdure.runtime.policy import CallView
from perdure.runtime.tools import Tool, as_tool, check_names, tool


class Deps:
    pass


@dataclass
class Customer:
    user: str


class Line(BaseModel):
    sku: str
    count: Annotated[int, Field(gt=0)] = 1


@tool(effect="idempotent", timeout=30, key=lambda order, **_: f"charge-{order}")
async def charge(order: str, cents: int, ctx: ToolContext[Deps, Customer], note: str = "none") -> str:
    """Charge an order.

    It takes a while.

    order: the order's number
    cents: how much,
        in cents
    """
    return f"{order} {cents} {note} {ctx.idempotency_key}"


@tool
def double(n: int) -> int:
    """Doubles."""
    return 2 * n


def test_the_spec_comes_from_signature_and_docstring() -> None:
    assert charge.spec == ToolSpec(
        name="charge",
        description="Charge an order.\n\nIt takes a while.",
        parameters={
            "type": "object",
            "properties": {
                "order": {"type": "string", "description": "the order's number"},
                "cents": {"type": "integer", "description": "how much, in cents"},
                "note": {"type": "string", "default": "none"},
            },
            "required": ["order", "cents"],
            "additionalProperties": False,
        },
        effect="idempotent",
        timeout=30,
    )
    assert charge.spec is charge.spec
    assert charge.data_type is Customer
    assert charge.context_name == "ctx"
    assert charge.data_codec is not None
    assert charge.data_codec.decode({"user": "u7"}) == Customer("u7")
    assert (charge.is_async, charge.declared_effect) == (True, True)


def test_a_bare_decorator_takes_the_careful_defaults() -> None:
    assert double.spec.effect == "once"
    assert double.spec.on_unknown == "ask"
    assert (double.is_async, double.declared_effect, double.data_type, double.context_name) == (
        False,
        False,
        None,
        None,
    )
    assert not double.spec.asks
    assert double.spec.parameters["properties"] == {"n": {"type": "integer"}}


def test_every_option_reaches_the_tool() -> None:
    def dear(call: CallView) -> bool:
        return call.arguments["n"] > 3

    made = tool(
        lambda n: n,
        name="twice-as_much",
        description="",
        effect="read",
        timeout=1.5,
        ask=dear,
        sequential=True,
        on_unknown="tell",
        expires=60,
    )
    assert (made.name, made.description, made.ask, made.expires) == ("twice-as_much", "", dear, 60)
    described = tool(name="other", description="Mine.", ask=True, sequential=True, on_unknown="tell")(double.function)
    assert described.spec == ToolSpec(
        "other",
        "Mine.",
        described.spec.parameters,
        on_unknown="tell",
        sequential=True,
        asks=True,
    )


def test_a_tool_is_frozen() -> None:
    with pytest.raises(AttributeError):
        double.effect = "read"


async def test_a_tool_stays_callable() -> None:
    assert double(4) == 8
    assert double(n=4) == 8
    assert await charge("7", 990, ctx=ToolContext.fake(deps=Deps())) == "7 990 none fake"
    assert await charge("7", 990, ToolContext.fake(idempotency_key="k")) == "7 990 none k"
    assert inspect.signature(double) == inspect.signature(double.function)
    assert double.__doc__ == "Doubles."


def test_a_missing_context_is_named() -> None:
    with pytest.raises(UsageError, match=r"charge\(\) needs its context; pass ctx=ToolContext.fake"):
        charge("7", 990)


async def test_invoke_hands_the_context_over() -> None:
    values = charge.parse('{"order":"7","cents":990}')
    assert await charge.invoke(values, ToolContext.fake(idempotency_key="k")) == "7 990 none k"
    assert double.invoke(double.parse('{"n":3}'), ToolContext.fake()) == 6


def test_arguments_are_parsed_with_their_defaults() -> None:
    assert charge.parse('{"cents":990,"order":"7"}') == {"order": "7", "cents": 990, "note": "none"}

    @tool
    def bill(lines: list[Line], customer: Customer, kind: Literal["a", "b"] = "a") -> None: ...

    assert bill.parse('{"lines":[{"sku":"x"}],"customer":{"user":"u"},"kind":"b"}') == {
        "lines": [Line(sku="x")],
        "customer": Customer("u"),
        "kind": "b",
    }


def test_no_arguments_at_all_may_be_an_empty_text() -> None:
    @tool
    def now(zone: str = "UTC") -> str:
        return zone

    assert now.parse("") == now.parse("{}") == {"zone": "UTC"}
    assert canonical("") == b"{}"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"order":"7"', "not valid JSON"),
        ("order=7", "not valid JSON"),
        ("[]", "one JSON object"),
        ("null", "one JSON object"),
        ("{}", "the argument `order` is missing; the argument `cents` is missing"),
        ('{"order":"7","cents":1,"tip":2}', "there is no argument `tip`. The arguments are: order, cents, note."),
        ('{"order":7,"cents":1}', "`order`: Expected `str`, got `int`."),
        ('{"order":"7","cents":"1"}', "`cents`: Expected `int`, got `str`."),
        ('{"order":"7","cents":1,"ctx":{}}', "there is no argument `ctx`"),
        ('{"order":"7","cents":1,"note":null}', "`note`"),
        ('{"order":"\ud800","cents":1}', "holds a lone surrogate"),
        ('{"order":' + "[" * 300 + "]" * 300 + "}", "nested deeper"),
        ("[" * 100_000, "nested deeper"),
        ('{"order":"7","cents":' + "1" * 5000 + "}", "out of range"),
    ],
)
def test_arguments_that_do_not_fit_are_told(arguments: str, told: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        charge.parse(arguments)
    assert told in str(caught.value)


@pytest.mark.parametrize("arguments", ["{", "\ud800", "[" * 100_000])
def test_what_is_no_json_has_no_canonical_form(arguments: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical(arguments)


def test_the_canonical_form_forgets_how_it_was_written() -> None:
    assert canonical('{ "cents": 990, "order": "\\u0037" }') == b'{"cents":990,"order":"7"}'
    assert canonical('{"order":"7","cents":1,"cents":990}') == canonical('{"order":"7","cents":990}')


def test_business_keys() -> None:
    assert charge.business_key(charge.parse('{"order":"7","cents":990}')) == "charge-7"
    assert double.business_key({"n": 1}) is None
    by_default = tool(charge.function, key=lambda note, **_: note)
    assert by_default.business_key(by_default.parse('{"order":"7","cents":1}')) == "none"
    wrong = tool(charge.function, key=lambda cents, **_: cents)
    with pytest.raises(UsageError, match="key= returned 990"):
        wrong.business_key(wrong.parse('{"order":"7","cents":990}'))


def google(order: str, cents: int) -> None:
    """Charge.

    In the Google style.

    Args:
        order (str): the number
            of the order
        cents: how much

    Returns:
        nothing
    """


def numpy(order: str, cents: int) -> None:
    """Charge.

    In the Google style.

    Parameters
    ----------
    order : str
        the number
        of the order
    cents
        how much
    """


def sphinx(order: str, cents: int) -> None:
    """Charge.

    In the Google style.

    :param order: the number
        of the order
    :param int cents: how much
    :returns: nothing
    """


def plain(order: str, cents: int) -> None:
    """Charge.

    In the Google style.

    order: the number
        of the order
    cents: how much

    More that no model needs.
    """


@pytest.mark.parametrize("function", [google, numpy, sphinx, plain])
def test_docstring_styles(function: Callable[..., Any]) -> None:
    spec = as_tool(function).spec
    assert spec.description == "Charge.\n\nIn the Google style."
    described = {name: body.get("description") for name, body in spec.parameters["properties"].items()}
    assert described == {"order": "the number of the order", "cents": "how much"}


def test_words_that_only_look_like_parameters_stay_in_the_description() -> None:
    def find(name: str) -> None:
        """Find a thing.

        Note: names are case-sensitive.
        Example: name
            name: in an example
        """

    assert as_tool(find).spec.description.endswith("name: in an example")


def test_a_described_type_keeps_its_own_words() -> None:
    @tool
    def order(
        count: Annotated[int, Field(gt=0, description="own")], size: Annotated[int, msgspec.Meta(description="own")]
    ) -> None:
        """Order.

        count: from the docstring
        size: from the docstring
        """

    properties = order.spec.parameters["properties"]
    assert properties["count"] == {"type": "integer", "exclusiveMinimum": 0, "description": "own"}
    assert properties["size"] == {"type": "integer", "description": "own"}


def test_constraints_of_both_libraries_are_enforced() -> None:
    @tool
    def order(count: Annotated[int, Field(gt=0)], size: Annotated[int, msgspec.Meta(gt=0)], line: Line) -> None: ...

    assert order.parse('{"count":1,"size":1,"line":{"sku":"x"}}')["line"] == Line(sku="x")
    for bad in ('"count":0,"size":1', '"count":1,"size":0', '"count":"1","size":1'):
        with pytest.raises(ValueError, match=r"count|size"):
            order.parse('{"line":{"sku":"x"},' + bad + "}")
    with pytest.raises(ValueError, match=r"`line`: `count`: Input should be greater than 0"):
        order.parse('{"count":1,"size":1,"line":{"sku":"x","count":0}}')


def test_a_default_of_none_makes_null_welcome() -> None:
    @tool
    def look(where: str = None, line: Line = None) -> None: ...  # noqa: RUF013 - as people write

    assert look.parse('{"where":null}') == {"where": None, "line": None}
    assert look.parse('{"where":"x","line":{"sku":"s"}}')["line"] == Line(sku="s")


def test_defaults_without_a_json_form_stay_out_of_the_schema() -> None:
    marker = object()

    @tool
    def look(where: Any = marker) -> None: ...

    assert look.spec.parameters["properties"] == {"where": {}}
    assert look.parse("{}")["where"] is marker


def test_any_parameter_may_be_the_context() -> None:
    @tool
    def bare(world: ToolContext, n: int) -> Any:
        return world, n

    @tool
    def optional(n: int, ctx: ToolContext[Any, Any] | None = None) -> Any:
        return ctx, n

    fake = ToolContext.fake()
    assert bare.context_name == "world"
    assert bare.data_type is None
    assert list(bare.spec.parameters["properties"]) == ["n"]
    assert bare.invoke(bare.parse('{"n":1}'), fake) == (fake, 1)
    assert optional(1) == (None, 1)
    assert optional.data_type is None
    assert optional.invoke(optional.parse('{"n":1}'), fake) == (fake, 1)


def test_local_names_in_string_annotations_are_found() -> None:
    @dataclass
    class Local:
        n: int

    @tool
    def decorated(a: Local, ctx: ToolContext[Deps, Local]) -> None: ...

    @tool(effect="read")
    def with_options(a: list[Local]) -> Local:
        return a[0]

    def closed_over(a: Local) -> Any:
        return Local

    assert decorated.parse('{"a":{"n":1}}') == {"a": Local(1)}
    assert decorated.data_type is Local
    assert with_options.parse('{"a":[{"n":1}]}') == {"a": [Local(1)]}
    assert as_tool(closed_over).parse('{"a":{"n":1}}') == {"a": Local(1)}


def test_a_return_type_nobody_can_resolve_does_no_harm() -> None:
    def find(n: int) -> Nowhere: ...  # noqa: F821 - only checkers know it

    assert as_tool(find).parse('{"n":1}') == {"n": 1}


class Bank:
    """A bank."""

    def __init__(self, name: str = "bank") -> None:
        self.name = name

    def pay(self, cents: int) -> str:
        """Pay."""
        return f"{self.name} {cents}"

    async def pay_soon(self, cents: int) -> str:
        return f"{self.name} {cents}"

    @staticmethod
    def rate(currency: str) -> str:
        """Rate."""
        return currency

    @tool
    @staticmethod
    def tool_outside(currency: str) -> str:
        return currency

    @staticmethod
    @tool
    def tool_inside(currency: str) -> str:
        return currency

    @tool(effect="read")
    def balance(self, account: str) -> str:
        return f"{self.name} {account}"


class Caller:
    """Calls."""

    async def __call__(self, n: int, ctx: ToolContext[Any, Any]) -> int:
        """Adds one."""
        return n + 1


async def test_all_that_can_be_called_can_be_a_tool() -> None:
    bank = Bank("b")
    assert as_tool(bank.pay).spec.description == "Pay."
    assert as_tool(bank.pay)(5) == "b 5"
    assert tool(bank.pay_soon, effect="read").is_async
    assert as_tool(Bank.rate).spec.description == "Rate."
    assert Bank.tool_outside("x") == Bank.tool_inside("x") == bank.tool_inside("x") == "x"
    assert Bank.tool_outside.name == "tool_outside"
    assert as_tool(Bank.tool_outside).parse('{"currency":"x"}') == {"currency": "x"}
    called = as_tool(Caller())
    assert (called.name, called.is_async, called.context_name) == ("Caller", True, "ctx")
    assert called.spec.description == "Adds one."
    assert await called.invoke({"n": 1}, ToolContext.fake()) == 2


def test_a_tool_made_of_a_method_is_bound_to_its_object() -> None:
    one, two = Bank("one"), Bank("two")
    assert one.balance("a") == "one a"
    assert two.balance.invoke(two.balance.parse('{"account":"a"}'), ToolContext.fake()) == "two a"
    assert one.balance.spec.effect == "read"
    with pytest.raises(UsageError, match="'self' has no type; pass the bound method"):
        _ = Bank.balance.spec


async def test_what_a_partial_has_bound_is_not_for_the_model() -> None:
    by_name = as_tool(functools.partial(charge.function, order="7"))
    assert list(by_name.spec.parameters["properties"]) == ["cents", "note"]
    assert by_name.name == "charge"
    assert by_name.is_async
    assert await by_name.invoke(by_name.parse('{"cents":1}'), ToolContext.fake()) == "7 1 none fake"
    by_place = as_tool(functools.partial(charge.function, "7"))
    assert list(by_place.spec.parameters["properties"]) == ["cents", "note"]
    bound_context = as_tool(functools.partial(charge.function, ctx=ToolContext.fake(idempotency_key="mine")))
    assert bound_context.context_name is None
    values = bound_context.parse('{"order":"7","cents":1}')
    assert await bound_context.invoke(values, ToolContext.fake()) == "7 1 none mine"


async def test_a_wrapped_function_is_read_through_its_wrapper() -> None:
    @functools.wraps(charge.function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return charge.function(*args, **kwargs)

    wrapped = tool(wrapper)
    assert list(wrapped.spec.parameters["properties"]) == ["order", "cents", "note"]
    assert wrapped.is_async
    assert await wrapped.invoke(wrapped.parse('{"order":"7","cents":1}'), ToolContext.fake()) == "7 1 none fake"


def untyped(order, cents: int): ...


def starred(*orders: str) -> None: ...


def double_starred(**orders: str) -> None: ...


def positional(order: str, /) -> None: ...


def unsupported(order: str, deps: Deps) -> None: ...


def unresolved(order: Nowhere) -> None: ...  # noqa: F821 - the point of it


def field_default(cents: int = Field(gt=0)) -> None: ...


def two_contexts(a: ToolContext[Any, Any], b: ToolContext[Any, Any]) -> None: ...


def bad_data(order: str, ctx: ToolContext[Any, Deps]) -> None: ...


def mixed(order: Annotated[list[Money], Field(min_length=1)]) -> None: ...


class Money(msgspec.Struct):
    cents: int


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (untyped, ("'untyped'", "'order'", "no type")),
        (starred, ("'starred'", "orders")),
        (double_starred, ("'double_starred'", "orders")),
        (positional, ("'positional'", "'order'", "'/'")),
        (unsupported, ("'unsupported'", "'deps'", "Deps has no JSON form")),
        (unresolved, ("'unresolved'", "'order'", "Nowhere")),
        (field_default, ("'field_default'", "'cents'", "Annotated")),
        (two_contexts, ("'two_contexts'", "'b'")),
        (bad_data, ("'bad_data'", "'ctx'", "Deps has no JSON form")),
        (mixed, ("'mixed'", "'order'", "mixes")),
        (max, ("'max'",)),
    ],
)
def test_a_function_that_cannot_be_described_is_refused(function: Any, told: tuple[str, ...]) -> None:
    made = tool(function)
    with pytest.raises(UsageError, match=r".") as caught:
        _ = made.spec
    assert all(words in str(caught.value) for words in told), str(caught.value)
    assert "\n" not in str(caught.value)


def generating(n: int) -> Iterator[int]:
    yield n


async def generating_soon(n: int) -> AsyncIterator[int]:
    yield n


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: tool(double.function, effect="write"), "effect='write'"),
        (lambda: tool(double.function, on_unknown="shrug"), "on_unknown='shrug'"),
        (lambda: tool(double.function, timeout=0), "timeout=0"),
        (lambda: tool(double.function, timeout=-1), "timeout=-1"),
        (lambda: tool(double.function, timeout=True), "timeout=True"),
        (lambda: tool(double.function, expires=0), "expires=0"),
        (lambda: tool(double.function, ask="yes"), "ask='yes'"),
        (lambda: tool(double.function, key="order"), "key='order'"),
        (lambda: tool(double.function, name="a b"), "'a b'"),
        (lambda: tool(double.function, name="x" * 65), "letters"),
        (lambda: tool(double.function, attempts=3), "no option 'attempts'"),
        (lambda: tool(lambda n: n), "<lambda>"),
        (lambda: tool(generating), "generator"),
        (lambda: tool(generating_soon), "generator"),
        (lambda: tool(staticmethod(generating)), "generator"),
        (lambda: tool(functools.partial(generating, 1)), "generator"),
        (lambda: as_tool("charge"), "no function"),
        (lambda: tool(7), "no function"),
    ],
)
def test_wrong_options_are_refused_at_once(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(UsageError, match=r".") as caught:
        make()
    assert told in str(caught.value)


def test_names_are_unique() -> None:
    check_names([charge, double])
    with pytest.raises(UsageError, match="Two tools are called 'double'"):
        check_names([charge, double, as_tool(double.function)])


def test_a_tool_is_taken_as_it_is() -> None:
    assert as_tool(charge) is charge
    assert isinstance(as_tool(google), Tool)
    assert not as_tool(google).declared_effect


def test_the_spec_is_plain_data() -> None:
    assert json.loads(msgspec.json.encode(charge.spec))["name"] == "charge"

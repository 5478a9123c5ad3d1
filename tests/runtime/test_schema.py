"""Types to JSON schema and back: strict, with constraints enforced, self-contained and the same every time."""

import json
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict

import msgspec
import pydantic
import pytest
from pydantic import BaseModel, Field

from perdure.core.errors import UsageError
from perdure.runtime.plain import to_json, to_plain
from perdure.runtime.schema import codec_of, schema_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Options(TypedDict):
    speed: int
    note: NotRequired[str]


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass
class Circle:
    radius: int


@dataclass
class Ring:
    radius: int
    inner: int = 0


@dataclass
class Basket:
    items: list[Circle]
    tags: dict[str, str] = field(default_factory=dict)


class Money(msgspec.Struct):
    cents: Annotated[int, msgspec.Meta(ge=0)]
    currency: str = "EUR"


class Node(msgspec.Struct):
    value: int
    children: list["Node"] = []


class Address(BaseModel):
    street: str
    since: date | None = None


class Person(BaseModel):
    name: str = Field(min_length=1)
    home: Address


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


@pydantic.dataclasses.dataclass
class Stamp:
    at: datetime
    tries: Annotated[int, Field(lt=5)] = 1


@dataclass
class Limited:
    """A plain dataclass with pydantic's constraint in it."""

    n: Annotated[int, Field(gt=0)]


class Delivery(msgspec.Struct):
    """msgspec outside, pydantic inside."""

    to: Person
    count: int = 1


@dataclass
class Parcel:
    to: Person
    price: Money


UserId = NewType("UserId", int)
Positive = NewType("Positive", Annotated[int, Field(gt=0)])

FITTING = [
    (int, 7, 7),
    (float, 7, 7.0),
    (str, "a", "a"),
    (bool, True, True),
    (None, None, None),
    (Any, {"a": [1]}, {"a": [1]}),
    (object, [1], [1]),
    (int | None, None, None),
    (Optional[str], "x", "x"),  # noqa: UP045 - the old form has to work as well
    (int | str, "x", "x"),
    (Literal["a", "b"], "b", "b"),
    (Colour, "red", Colour.RED),
    (list[int], [1, 2], [1, 2]),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2], (1, 2)),
    (set[int], [1, 2], {1, 2}),
    (frozenset[str], ["a"], frozenset("a")),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (date, "2026-01-31", date(2026, 1, 31)),
    (Path, "a/b", Path("a/b")),
    (list[Path], ["a"], [Path("a")]),
    (UserId, 7, 7),
    (Options, {"speed": 1}, {"speed": 1}),
    (Point, [1, 2], Point(1, 2)),
    (Circle, {"radius": 1}, Circle(1)),
    (Basket, {"items": [{"radius": 1}]}, Basket([Circle(1)])),
    (Money, {"cents": 5}, Money(5)),
    (Node, {"value": 1, "children": [{"value": 2}]}, Node(1, [Node(2)])),
    (Annotated[int, msgspec.Meta(gt=0)], 1, 1),
    (Address, {"street": "s", "since": "2026-01-31"}, Address(street="s", since=date(2026, 1, 31))),
    (Tree, {"value": 1, "children": [{"value": 2}]}, Tree(value=1, children=[Tree(value=2)])),
    (list[Address], [{"street": "s"}], [Address(street="s")]),
    (Address | None, None, None),
    (Stamp, {"at": "2026-01-31T00:00:00"}, Stamp(at=datetime(2026, 1, 31))),
    (Annotated[int, Field(gt=0)], 1, 1),
    (list[Annotated[int, Field(gt=0)]], [1], [1]),
    (Limited, {"n": 1}, Limited(1)),
    (pydantic.PositiveInt, 1, 1),
    (
        Delivery,
        {"to": {"name": "n", "home": {"street": "s"}}},
        Delivery(Person(name="n", home=Address(street="s"))),
    ),
    (
        Parcel,
        {"to": {"name": "n", "home": {"street": "s"}}, "price": {"cents": 1}},
        Parcel(Person(name="n", home=Address(street="s")), Money(1)),
    ),
    # Unions that msgspec refuses.
    ([Circle, Ring], {"radius": 1, "inner": 1}, Ring(1, 1)),
    ([Circle, Ring], {"radius": 1}, Circle(1)),
    (Ring | Circle, {"radius": 1, "other": 2}, Ring(1)),
    (list[Circle | Ring], [{"radius": 1, "inner": 1}], [Ring(1, 1)]),
    (dict[str, Circle | Ring] | None, {"a": {"radius": 1}}, {"a": Circle(1)}),
    (date | str, "2026-01-31", date(2026, 1, 31)),
    (date | str, "soon", "soon"),
    (list[int] | set[str], ["a"], {"a"}),
    (Colour | str, "red", Colour.RED),
    (Address | Money, {"cents": 1}, Money(1)),
    (Annotated[int, Field(gt=0)] | Money, {"cents": 1}, Money(1)),
]


@pytest.mark.parametrize(("annotation", "plain", "value"), FITTING, ids=lambda case: str(case)[:40])
def test_a_fitting_value_is_read_and_written_back(annotation: Any, plain: Any, value: Any) -> None:
    codec = codec_of(annotation)
    assert codec.decode(plain) == value
    assert codec.decode(json.dumps(plain).encode()) == value
    assert codec.decode(codec.encode(value)) == value
    assert_self_contained(codec.schema)


MISFITS = [
    (int, "7", "`int`"),
    (int, 7.5, "`int`"),
    (int, True, "`int`"),
    (str, 7, "`str`"),
    (float, "7", "`float`"),
    (bool, 1, "`bool`"),
    (Literal["a"], "b", "'b'"),
    (Colour, "green", "'green'"),
    (list[int], [1, "2"], "`[1]`"),
    (tuple[int, str], [1], "length 2"),
    (dict[int, str], {"a": "b"}, "int"),
    (Options, {"note": "n"}, "`speed`"),
    (Basket, {"items": [{"radius": "1"}]}, "`items[0].radius`"),
    (Money, {"cents": -1}, "`cents`"),
    (Annotated[int, msgspec.Meta(gt=0)], 0, ">= 1"),
    (Annotated[int, Field(gt=0)], 0, "greater than 0"),
    (list[Annotated[int, Field(gt=0)]], [1, 0], "`1`"),
    (Limited, {"n": 0}, "`n`"),
    (Limited, {"n": "1"}, "`n`"),
    (Address, {"street": 7}, "`street`"),
    (Address, {}, "`street`"),
    (Person, {"name": "", "home": {"street": "s"}}, "`name`"),
    (Person, {"name": "n", "home": {"street": 1}}, "`home.street`"),
    (Stamp, {"at": "2026-01-31T00:00:00", "tries": 5}, "`tries`"),
    (Delivery, {"to": {"name": "n", "home": {}}}, "`to`: `home.street`"),
    (pydantic.PositiveInt, 0, "greater than 0"),
    (Positive, 0, "greater than 0"),
    (Path, 7, "`int`"),
    ([Circle, Ring], {"inner": 1}, "Circle: Object missing required field `radius`"),
    (list[Circle | Ring], [{"radius": 1}, {}], "`[1]`"),
    (date | str, 7, "no member"),
]


@pytest.mark.parametrize(("annotation", "plain", "told"), MISFITS, ids=lambda case: str(case)[:40])
def test_a_misfit_is_told_with_its_place_and_never_coerced(annotation: Any, plain: Any, told: str) -> None:
    codec = codec_of(annotation)
    for value in (plain, json.dumps(plain).encode()):
        with pytest.raises(ValueError, match=r".") as caught:
            codec.decode(value)
        assert told in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "https:" not in str(caught.value)


class IgnoredByMsgspec(msgspec.Struct):
    n: Annotated[int, Field(gt=0)]


class IgnoredByPydantic(BaseModel):
    n: Annotated[int, msgspec.Meta(gt=0)]


class Thing:
    pass


@dataclass
class Unresolvable:
    other: "Nowhere"  # noqa: F821 # pyright: ignore[reportUndefinedVariable] - the point of it


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        (Thing, "Thing has no JSON form"),
        (list[Thing], "Thing has no JSON form"),
        (type, "type"),
        (Unresolvable, "Nowhere"),
        (IgnoredByMsgspec, "msgspec would ignore"),
        (list[IgnoredByMsgspec], "msgspec would ignore"),
        (IgnoredByPydantic, "pydantic would ignore"),
        (Annotated[list[Money], Field(min_length=1)], "mixes"),
        (Annotated[str, msgspec.Meta(gt=0)], "numeric"),
        ([], "at least one"),
    ],
)
def test_a_type_without_a_truthful_schema_is_refused(annotation: Any, told: str) -> None:
    with pytest.raises(UsageError, match=r".") as caught:
        codec_of(annotation)
    assert told in str(caught.value)


class Touchy(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        raise KeyError(self.n)


class TouchyModel(BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def refuse(cls, value: int) -> int:
        raise ZeroDivisionError(value)


@pytest.mark.parametrize("annotation", [Touchy, TouchyModel])
def test_an_exception_in_a_users_validator_is_a_misfit(annotation: Any) -> None:
    with pytest.raises(ValueError, match=r"KeyError|ZeroDivisionError"):
        codec_of(annotation).decode({"n": 1})


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a":', b"NaN", b"[" * 100_000, b"[" * 300 + b"]" * 300, b"1" * 5000, b'"\\ud800"']
)
@pytest.mark.parametrize("annotation", [Any, Address, Circle | Ring])
def test_hostile_text_is_a_value_error(annotation: Any, text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        codec_of(annotation).decode(text)


def test_what_is_written_is_checked_against_the_type() -> None:
    with pytest.raises(ValueError, match="cents"):
        codec_of(Money).encode({"cents": "5"})
    with pytest.raises(ValueError, match="int"):
        codec_of(Annotated[int, Field(gt=0)]).encode("7")
    with pytest.raises(ValueError, match="Thing"):
        codec_of(Any).encode(Thing())


class Aliased(BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    full_name: str = Field(alias="fullName")

    @pydantic.computed_field
    @property
    def shout(self) -> str:
        return self.full_name.upper()


def test_pydantic_values_survive_the_round_trip() -> None:
    codec = codec_of(Aliased)
    value = Aliased(fullName="n")
    assert codec.encode(value) == {"fullName": "n"}
    assert codec.decode(codec.encode(value)) == value


def test_schemas_say_what_the_types_say() -> None:
    assert schema_of(Money) == {
        "title": "Money",
        "type": "object",
        "properties": {
            "cents": {"type": "integer", "minimum": 0},
            "currency": {"type": "string", "default": "EUR"},
        },
        "required": ["cents"],
    }
    assert schema_of(Annotated[int, Field(gt=0, description="how many")]) == {
        "type": "integer",
        "exclusiveMinimum": 0,
        "description": "how many",
    }
    assert schema_of(Colour)["enum"] == ["blue", "red"]
    assert schema_of([Circle, Ring])["anyOf"][1]["properties"]["inner"] == {"type": "integer", "default": 0}
    assert schema_of(Tree)["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


def test_a_model_that_only_pydantic_can_read_is_left_to_it() -> None:
    class Inner(BaseModel):
        n: int

    class Outer(BaseModel):
        inner: "Inner"

    assert codec_of(Outer).decode({"inner": {"n": 1}}) == Outer(inner=Inner(n=1))


def make_twin() -> Any:
    class Address(msgspec.Struct):
        """Another type of the same name."""

        zip: int

    return Address


def test_two_types_of_one_name_stay_apart() -> None:
    twin = make_twin()
    schema = codec_of(list[twin] | dict[str, Delivery | list[Person] | str | date]).schema
    assert_self_contained(schema)
    bodies = schema["$defs"]
    addresses = [body for name, body in bodies.items() if name.startswith("Address")]
    assert sorted(next(iter(body["properties"])) for body in addresses) == ["street", "zip"]
    # Each reference still leads to its own.
    person = next(body for name, body in bodies.items() if name.startswith("Person"))
    home = person["properties"]["home"]["$ref"].removeprefix("#/$defs/")
    assert "street" in bodies[home]["properties"]


def test_schemas_do_not_depend_on_the_process() -> None:
    script = (
        "import json, tests.runtime.test_schema as t; from perdure.runtime.schema import schema_of;"
        "print(json.dumps([schema_of(case[0]) for case in t.FITTING]))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            check=True,
            text=True,
            env={"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_pydantic_stays_out_of_processes_that_do_not_use_it() -> None:
    script = (
        "import sys, perdure; from dataclasses import dataclass; from perdure import tool;"
        "from perdure.runtime.schema import codec_of\n"
        "assert 'docstring_parser' not in sys.modules\n"
        "@dataclass\nclass A: x: int\n"
        "@tool\ndef f(a: A, b: list[A] | None = None): 'Do.'\n"
        "f.spec; codec_of([A, int]).decode(1); codec_of(A).encode(A(1))\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Label(str):
    __slots__ = ()


class Count(int):
    pass


class Share(float):
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": (1, 2)}, '{"b":1,"a":[1,2]}'),
        ({1}, "[1]"),
        (Colour.RED, '"red"'),
        (datetime(2026, 1, 31), '"2026-01-31T00:00:00"'),
        (Address(street="s"), '{"street":"s","since":null}'),
        ([Address(street="s")], '[{"street":"s","since":null}]'),
        (Stamp(at=datetime(2026, 1, 31)), '{"at":"2026-01-31T00:00:00","tries":1}'),
        (pydantic.SecretStr("hidden"), '"**********"'),
        (Circle(1), '{"radius":1}'),
        (Money(1), '{"cents":1,"currency":"EUR"}'),
        (Path("a/b"), '"a/b"'),
        (range(3), "[0,1,2]"),
        (deque([1, 2]), "[1,2]"),
        (MappingProxyType({"a": Count(1), "b": Share(0.5)}), '{"a":1,"b":0.5}'),
        ({"a": 1}.values(), "[1]"),
        ({"k": Label("x")}, '{"k":"x"}'),
        (float("nan"), "null"),
        ("\ud800", '"�"'),
        ({"k": ["\ud800"]}, '{"k":["�"]}'),
    ],
)
def test_values_with_a_plain_form_are_written(value: Any, text: str) -> None:
    assert to_json(value) == text
    assert to_plain(value) == json.loads(text)


def looped() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize("value", [Thing(), {"a": Thing()}, lambda: 1, {(1, 2): 3}, looped(), (i for i in "a")])
def test_values_without_a_plain_form_are_value_errors(value: Any) -> None:
    with pytest.raises(ValueError, match="give"):
        to_json(value)


def assert_self_contained(schema: Any) -> None:
    """Every reference in the document leads to one of its own definitions."""

    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [found for value in node.values() for found in references(value)]
        return [found for item in node for found in references(item)] if isinstance(node, list) else []

    known = {f"#/$defs/{name}" for name in schema.get("$defs", {})}
    assert set(references(schema)) == known or set(references(schema)) <= known
    assert all("$defs" not in body for body in schema.get("$defs", {}).values())

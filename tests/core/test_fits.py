"""Answers against schemas: the same verdict as jsonschema's own rules, in the keywords that are known; never half."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.errors import UsageError
from perdure.core.fits import check_schema, misfit

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "string", "minLength": 2}, "cents": {"type": "integer", "minimum": 1}},
    "required": ["id"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}},
    },
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [1, -5, 2.0], [1.5, "1", True, None]),
        ({"type": "number"}, [1, 1.5], ["1", False]),
        ({"type": "boolean"}, [True], [1, 0, "true"]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"enum": ["a", 1]}, ["a", 1], ["b", True]),
        ({"const": 0}, [0], [False, 1]),
        (
            ORDER,
            [{"id": "ab"}, {"id": "ab", "cents": 1}],
            [{}, {"id": "a"}, {"id": "ab", "cents": 0}, {"id": "ab", "x": 1}, []],
        ),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
            [["a"]],
            [[], ["a", 1], ["a"] * 3],
        ),
        ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]}, [["a", 1], ["a"]], [[1, "a"]]),
        ({"type": "array", "uniqueItems": True}, [[1, 2, True]], [[1, 1]]),
        ({"type": "string", "pattern": "^a", "maxLength": 2}, ["a", "ab"], ["b", "abc"]),
        ({"anyOf": [{"type": "string"}, {"type": "integer", "exclusiveMinimum": 3}]}, ["x", 4], [3, None]),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, [1.5], [1]),
        ({"allOf": [{"minimum": 1}, {"maximum": 5}]}, [3], [0, 6]),
        ({"multipleOf": 5, "exclusiveMaximum": 20}, [15], [14, 20]),
        (TREE, [{"next": {"next": None}}], [{"next": {"next": 1}}]),
        (True, [1, None], []),
        (False, [], [1, None]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"a": "1"}]),
    ],
)
def test_what_fits_and_what_does_not(schema: Any, good: list[Any], bad: list[Any]) -> None:
    check_schema(schema)
    for value in good:
        assert misfit(schema, value) == "", value
    for value in bad:
        assert misfit(schema, value), value


def test_what_is_wrong_is_told_with_its_place() -> None:
    assert misfit(ORDER, {"id": "ab", "cents": "many"}) == "cents: it has to be of type integer"
    assert misfit({"type": "array", "items": ORDER}, [{"id": "ab"}, {}]) == "[1]: id is missing"
    assert misfit({"enum": ["yes", "no"]}, "maybe") == "the value: it has to be one of 'yes', 'no'"


@pytest.mark.parametrize(
    "schema", [{"not": {}}, {"if": {}}, {"properties": {"a": {"patternProperties": {}}}}, [], "string"]
)
def test_a_schema_that_cannot_be_checked_is_refused(schema: Any) -> None:
    with pytest.raises(UsageError):
        check_schema(schema)

"""What providers would refuse is never sent, in any format: a thought alone, foreign files, another conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.core.messages import AssistantMessage, Media, Text, Thinking, UserMessage
from perdure.core.specs import ModelSettings
from perdure.models.wires.openai_parts import is_strict
from perdure.ports import ModelRequest
from perdure.testing.provider_streams import FORMATS, Format
from tests.models.test_cuts import WIRES

HELLO = UserMessage((Text("Hello"),))
FIELDS: dict[Format, str] = {
    "openai": "messages",
    "openai-responses": "input",
    "anthropic": "messages",
    "google": "contents",
}


def sent(format: Format, *messages: Any, settings: ModelSettings | None = None, **options: Any) -> Any:
    request = ModelRequest("m", "Be brief.", messages or (HELLO,), settings=settings or ModelSettings(), **options)
    return json.loads(WIRES[format].to_wire(request, "m", {"a1": b"\x00\xff<svg/>"}))


@pytest.mark.parametrize("format", FORMATS)
def test_an_answer_that_was_only_thought_is_not_sent(format: Format) -> None:
    thought = Thinking("hm", "sig", {"type": "reasoning", "id": "rs_1", "encrypted_content": "x", "summary": []})
    answer = AssistantMessage((thought,), format)
    body = sent(format, HELLO, answer, UserMessage((Text("Say something."),)))
    conversation = body[FIELDS[format]]
    roles = [item.get("role") for item in conversation if item.get("role") not in ("system", "developer")]
    assert roles == ["user", "user"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "media",
    [
        Media("image", "a1", "image/svg+xml", 8, "x.svg"),
        Media("document", "a1", "application/octet-stream", 8, "b.bin"),
    ],
    ids=["svg", "binary"],
)
def test_a_file_that_a_provider_does_not_take_is_named_instead(format: Format, media: Media) -> None:
    body = json.dumps(sent(format, UserMessage((Text("Look."), media))))
    assert media.name in body
    assert "cannot be shown" in body


@pytest.mark.parametrize("format", FORMATS)
def test_what_the_settings_add_is_merged_and_never_replaces_the_conversation(format: Format) -> None:
    extra = {
        "openai": {"response_format": {"x": 1}},
        "openai-responses": {"text": {"verbosity": "low"}},
        "anthropic": {"output_config": {"x": 1}},
        "google": {"generationConfig": {"topK": 3}},
    }[format]
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    body = sent(format, settings=ModelSettings(temperature=0.5, extra=extra), output=schema)
    assert '"integer"' in json.dumps(body), "the schema is still there"
    (name, value), *_ = extra.items()
    assert value.items() <= body[name].items()
    with pytest.raises(ValueError, match="conversation"):
        sent(format, settings=ModelSettings(extra={FIELDS[format]: []}))


def test_an_enum_without_a_type_is_not_strict() -> None:
    assert is_strict({"type": "string", "enum": ["a"]})
    assert not is_strict({"enum": ["a"]})

"""A call that the output limit cut right behind its name has no arguments, and never those of a call without any."""

from __future__ import annotations

import pytest

from perdure.core.messages import ToolCall
from perdure.ports import ModelResponse
from perdure.testing.provider_streams import Format, stream_of
from tests.models.test_cuts import WIRES, read


@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic"])
@pytest.mark.parametrize(("stop", "arguments"), [("length", ""), ("calls", "{}")])
def test_empty_arguments_mean_nothing_at_the_output_limit(format: Format, stop: str, arguments: str) -> None:
    told = ModelResponse((ToolCall(0, "wipe", "", "a"),), stop)  # type: ignore[arg-type]
    _, end = read(WIRES[format], stream_of(format, told))
    assert isinstance(end, ModelResponse)
    assert [part.arguments for part in end.parts if isinstance(part, ToolCall)] == [arguments]

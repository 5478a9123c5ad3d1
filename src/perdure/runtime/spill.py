"""Large results: the whole is an artifact, the transcript keeps its head, its tail and where to read the rest.

Rule: a text that is shortened says so, says how long it was, and names the tool that reads the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.errors import NotFound, ToolError
from perdure.core.messages import Part, Text
from perdure.runtime.context import ToolContext
from perdure.runtime.media import Artifacts
from perdure.runtime.tools import tool

READ_OUTPUT = "read_output"
LARGEST = 50_000
"""Bytes of text that a result may have in the log."""
SHOWN = 4_000
"""Characters of its head, and of its tail."""


def spill(parts: Sequence[Part], artifacts: Artifacts) -> tuple[Part, ...]:
    """The parts as the log keeps them; what was too large is put with the artifacts."""
    return tuple([_spill(part, artifacts) if isinstance(part, Text) else part for part in parts])


def _spill(part: Text, artifacts: Artifacts) -> Text:
    if len(part.text) <= LARGEST // 4 or len(data := part.text.encode()) <= LARGEST:
        return part
    digest = artifacts.put(data, "text/plain").digest
    head, tail = part.text[:SHOWN], part.text[-SHOWN:]
    left = len(part.text) - 2 * SHOWN
    where = f"{READ_OUTPUT}(output={digest!r}, start={SHOWN})"
    note = f"[… {left:,} of {len(part.text):,} characters left out; {where} shows them …]"
    return Text(f"{head}\n{note}\n{tail}")


@tool(effect="read")
async def read_output(output: str, ctx: ToolContext[Any, Any], start: int = 0, length: int = 20_000) -> str:
    """Read a part of a long tool result that was shortened.

    output: the name that the shortened result gives
    start: the first character to show
    length: how many characters to show, 20000 at most
    """
    try:
        text = (await ctx.artifacts.get(output)).decode()
    except (NotFound, UnicodeDecodeError):
        raise ToolError(f"There is no output {output!r}; take the name from the shortened result.") from None
    start = max(0, start)
    end = min(len(text), start + max(1, min(length, 20_000)))
    return f"[characters {start:,} to {end:,} of {len(text):,}]\n{text[start:end]}"

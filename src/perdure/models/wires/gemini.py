"""Gemini generateContent: requests of contents, tools and one generationConfig as one JSON body.

Rule: a signature goes back on the part it came with, if it is this wire's own. A turn's first call without one gets the
value that Google documents for histories of other models, since newer models refuse a call without any.
"""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from typing import Any, Literal, cast

import msgspec

from perdure.core.messages import (
    JSON,
    AssistantMessage,
    Message,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.core.specs import EFFORT_TOKENS, Effort
from perdure.models.wires.gemini_failures import read_failure
from perdure.models.wires.gemini_reader import GeminiReader
from perdure.models.wires.output_tool import DESCRIPTION, OutputTool, output_tool
from perdure.models.wires.wire import (
    Failure,
    Files,
    call_id,
    compose,
    encode,
    object_of,
    open_list,
    spoken,
    unshown,
    with_extra,
    without_none,
    write,
    write_all,
    write_beside,
)
from perdure.ports import ModelRequest

NO_SIGNATURE = "skip_thought_signature_validator"
LEAST_BUDGET = 512
"""That every model takes."""

_SHOWN = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "image/gif", "application/pdf", "text/")
_LEVELS = {"off": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH"}


class GeminiWire(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """The generateContent format. Google caches prompts by itself and has no switch for parallel calls.

    `thinking`: how an effort is written: as a "level" (Gemini 3 and later) or a "budget"; a number always is a budget.
    `output`: "native" by schema, or "tool"; Gemini before 3 refuses a schema beside tools.
    `result_media`: images and documents of a tool's result go "inside" of it (Gemini 3 and later) or "beside" it.
    """

    name: str = "google"
    version: str = "v1beta"
    thinking: Literal["level", "budget"] = "level"
    output: Literal["native", "tool"] = "native"
    result_media: Literal["inside", "beside"] = "inside"

    @property
    def continues(self) -> bool:
        return False

    def address(self, base_url: str, model: str) -> str:
        base = base_url.rstrip("/").removesuffix(f"/{self.version}")
        path = model if "/" in model else f"models/{model}"
        return f"{base}/{self.version}/{path}:streamGenerateContent?alt=sse"

    def headers(self, key: str) -> dict[str, str]:
        return {"content-type": "application/json"} | ({"x-goog-api-key": key} if key else {})

    def to_wire(self, request: ModelRequest, model: str, files: Files) -> bytes:
        pieces = write_all(request, self, partial(_write_message, wire=self, files=files))
        return compose(write_beside(request, self, model, self._write_beside), pieces)

    def _write_beside(self, request: ModelRequest, model: str) -> bytes:
        return open_list(write(_head(self, request)), b"contents")

    def from_wire(self, request: ModelRequest) -> GeminiReader:
        return GeminiReader(_output_tool(self, request))

    def read_failure(self, status: int, body: bytes) -> Failure:
        return read_failure(status, body)


def wire_for(model: str, **options: Any) -> GeminiWire:
    """The wire as the model needs it: what Gemini models before 3 cannot do is known by their names."""
    is_older = "gemini-1" in model or "gemini-2" in model
    known: dict[str, Any] = {"thinking": "budget", "output": "tool", "result_media": "beside"} if is_older else {}
    return GeminiWire(**(known | options))


def _head(wire: GeminiWire, request: ModelRequest) -> dict[str, JSON]:
    forced = _output_tool(wire, request)
    declared = _tools_of(request, forced)
    system = {"parts": [{"text": request.instructions}]} if request.instructions.strip() else None
    fields: dict[str, JSON] = {
        "systemInstruction": system,
        "tools": [{"functionDeclarations": declared}] if declared else None,
        "toolConfig": _choice_of(request, forced) if declared else None,
        "generationConfig": _config_of(wire, request, forced) or None,
    }
    return with_extra(without_none(fields), request.settings.extra, reserved="contents")


def _config_of(wire: GeminiWire, request: ModelRequest, forced: OutputTool | None) -> dict[str, JSON]:
    settings = request.settings
    is_native = request.output is not None and forced is None
    return without_none(
        {
            "temperature": settings.temperature,
            "topP": settings.top_p,
            "topK": settings.top_k,
            "maxOutputTokens": settings.max_tokens,
            "seed": settings.seed,
            "stopSequences": list(settings.stop) or None,
            "presencePenalty": settings.presence_penalty,
            "frequencyPenalty": settings.frequency_penalty,
            "responseMimeType": "application/json" if is_native else None,
            "responseJsonSchema": request.output if is_native else None,
            "thinkingConfig": _thinking_of(wire, settings.thinking, settings.max_tokens),
        }
    )


def _thinking_of(wire: GeminiWire, wish: Effort | int | None, max_tokens: int | None) -> JSON:
    if wish is None:
        return None
    if isinstance(wish, int) or wire.thinking == "budget":
        budget = wish if isinstance(wish, int) else EFFORT_TOKENS[wish]
        if max_tokens is not None and budget >= max_tokens:
            # Thoughts count as written: with a budget for all of it nothing would be said.
            budget = max(LEAST_BUDGET, max_tokens // 2)
        return {"thinkingBudget": budget, "includeThoughts": budget != 0}
    return {"thinkingLevel": _LEVELS[wish], "includeThoughts": wish != "off"}


def _tools_of(request: ModelRequest, forced: OutputTool | None) -> list[JSON]:
    tools: list[dict[str, JSON]] = [
        {"name": tool.name, "description": tool.description or None, "parametersJsonSchema": tool.parameters}
        for tool in request.tools
    ]
    if forced is not None:
        tools.append({"name": forced.name, "description": DESCRIPTION, "parametersJsonSchema": forced.schema})
    return [without_none(tool) for tool in tools]


def _choice_of(request: ModelRequest, forced: OutputTool | None) -> JSON:
    wish = request.settings.tool_choice
    names = [wish] if wish not in ("", "auto", "none", "required") else []
    if forced is not None:
        names = names or ([forced.name] if wish == "none" else [])
        mode = "ANY"
    elif wish in ("", "auto"):
        if not wish:
            return None
        mode = "AUTO"
    else:
        mode = "NONE" if wish == "none" else "ANY"
    config: dict[str, JSON] = {"mode": mode}
    return {"functionCallingConfig": config | ({"allowedFunctionNames": names} if names else {})}


def _output_tool(wire: GeminiWire, request: ModelRequest) -> OutputTool | None:
    return None if request.output is None or wire.output == "native" else output_tool(request)


def _write_message(message: Message, wire: GeminiWire, files: Files) -> bytes:
    match message:
        case UserMessage(parts=parts):
            role = "user"
            written = [_write_part(part, files) for part in parts] or [{"text": ""}]
        case AssistantMessage():
            role = "model"
            written = _write_answer(message, message.provider == wire.name)
        case ToolMessage(results=results):
            role = "user"
            written = [part for result in results for part in _write_result(result, wire, files)]
    return encode({"role": role, "parts": written}) + b"," if written else b""


def _write_answer(message: AssistantMessage, is_own: bool) -> list[JSON]:
    written: list[JSON] = []
    has_call = False
    for part in spoken(message.parts):
        signed: dict[str, JSON] = {}
        extras = cast(JSON, None) if isinstance(part, Thinking) else part.extras
        if is_own and isinstance(extras, dict) and "thoughtSignature" in extras:
            signed = {"thoughtSignature": cast(dict[str, JSON], extras)["thoughtSignature"]}
        match part:
            case Text(text=text):
                if text or signed:
                    written.append({"text": text} | signed)
            case ToolCall():
                if not signed and not has_call:
                    signed = {"thoughtSignature": NO_SIGNATURE}
                has_call = True
                call = {"id": call_id(part.call), "name": part.name, "args": object_of(part.arguments)}
                written.append({"functionCall": call} | signed)
            case Thinking(text=text, signature=signature):
                # A thought without a signature is a summary, which means nothing to the model.
                if is_own and signature:
                    written.append({"text": text, "thought": True, "thoughtSignature": signature})
    return written


def _write_result(result: ToolResult, wire: GeminiWire, files: Files) -> list[JSON]:
    parts = [_write_part(part, files) for part in result.parts]
    text = "\n".join(part["text"] for part in parts if "text" in part)
    media: list[JSON] = [part for part in parts if "text" not in part]
    response: dict[str, JSON] = {
        "id": call_id(result.call),
        "name": result.name,
        "response": {"output" if result.outcome == "ok" else "error": text},
    }
    if media and wire.result_media == "inside":
        response["parts"] = media
        media = []
    return [{"functionResponse": response}, *media]


def _write_part(part: Part, files: Files) -> dict[str, JSON]:
    if isinstance(part, Text):
        return {"text": part.text}
    data, media_type = files[part.artifact], part.media_type
    if not media_type.startswith(_SHOWN):
        # Google refuses what it does not know; many a type is text all the same.
        if not _is_text(data):
            return {"text": unshown(part)}
        media_type = "text/plain"
    return {"inlineData": {"mimeType": media_type, "data": b64encode(data).decode()}}


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True

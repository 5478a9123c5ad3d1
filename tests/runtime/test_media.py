"""Inputs and tool results -> parts, with their bytes kept as artifacts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from perdure.core.codec import decode_event, digest_of, encode_event
from perdure.core.errors import UsageError
from perdure.core.events import CallEnded
from perdure.core.messages import Media, Text
from perdure.runtime import media
from perdure.runtime.media import Artifact, Artifacts, Document, Image, result_parts, to_parts

PNG = b"\x89PNG\r\n\x1a\n0000"
SAMPLES = [
    (PNG, "image/png"),
    (b"\xff\xd8\xff\xe0 jpeg", "image/jpeg"),
    (b"GIF89a", "image/gif"),
    (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
]


@pytest.mark.parametrize(("data", "media_type"), SAMPLES)
def test_images_are_known_by_their_bytes(data: bytes, media_type: str, tmp_path: Path) -> None:
    assert Image(data).media_type == media_type
    path = tmp_path / "misnamed.txt"
    path.write_bytes(data)
    for source in (path, str(path)):
        image = Image(source)
        assert (image.media_type, image.name, image.data) == (media_type, "misnamed.txt", data)


@pytest.mark.parametrize(
    ("data", "name", "media_type"),
    [
        (b"%PDF-1.7", "", "application/pdf"),
        (b"%PDF-1.7", "odd.txt", "application/pdf"),
        (b"a,b\n1,2\n", "table.csv", "text/csv"),
        (b'{"a":1}', "", "application/json"),
        (b"[1, 2]", "", "application/json"),
        (b"[not json", "", "text/plain"),
        (b'{"a":1}', "notes.txt", "text/plain"),
        ("grüße".encode(), "", "text/plain"),
        (b"# Title", "page.html", "text/html"),
        (b"\x00\x01\x02", "", "application/octet-stream"),
        (b"\xff\xfe\xff", "", "application/octet-stream"),
        (PNG, "", "image/png"),
    ],
)
def test_documents_are_known_by_bytes_or_name(data: bytes, name: str, media_type: str) -> None:
    document = Document(data, name=name)
    assert (document.media_type, document.name, document.data) == (media_type, name, data)


def test_what_is_said_outright_counts() -> None:
    assert Image(b"raw pixels", "image/x-raw", "dot").media_type == "image/x-raw"
    assert Image(b"<svg/>", name="a.svg").media_type == "image/svg+xml"
    assert Document(b"%PDF-1.7", media_type="text/plain", name="x").media_type == "text/plain"


@pytest.mark.parametrize("kind", [Image, Document])
def test_files_that_cannot_be_used_are_refused(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"missing\.png'\): there is no such file"):
        kind(tmp_path / "missing.png")
    with pytest.raises(UsageError, match="cannot be read"):
        kind(tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        kind("a\0b.png")
    empty = tmp_path / "empty.png"
    empty.touch()
    for source in (empty, b""):
        with pytest.raises(UsageError, match="it is empty"):
            kind(source)
    monkeypatch.setattr(media, "MAX_BYTES", 10)
    large = tmp_path / "large.png"
    large.write_bytes(PNG)
    for source in (large, PNG):
        with pytest.raises(UsageError, match="too large; pass at most 10 bytes"):
            kind(source)


def test_fifty_megabytes_are_the_most(tmp_path: Path) -> None:
    assert media.MAX_BYTES == 50_000_000
    path = tmp_path / "sparse.png"
    with path.open("wb") as file:
        os.truncate(file.fileno(), media.MAX_BYTES + 1)
    with pytest.raises(UsageError, match="at most 50,000,000 bytes"):
        Image(path)


@pytest.mark.parametrize(
    ("source", "more"), [(b"no picture", {}), (b"x", {"name": "a.txt"}), (PNG, {"media_type": "text/plain"})]
)
def test_an_image_has_to_be_one(source: bytes, more: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="no known kind of image; pass media_type"):
        Image(source, **more)


def test_inputs_become_parts_and_artifacts() -> None:
    assert to_parts("Bill order 7") == ((Text("Bill order 7"),), {})
    parts, artifacts = to_parts(["What is this?", Image(PNG, name="r.png"), Document(b"text", name="t.txt")])
    assert parts == (
        Text("What is this?"),
        Media("image", digest_of(PNG), "image/png", 12, "r.png"),
        Media("document", digest_of(b"text"), "text/plain", 4, "t.txt"),
    )
    assert artifacts == {digest_of(PNG): PNG, digest_of(b"text"): b"text"}
    assert to_parts(Image(PNG))[0] == (Media("image", digest_of(PNG), "image/png", 12),)
    assert to_parts(("a", " ", "b"))[0] == (Text("a"), Text("b"))


@pytest.mark.parametrize("value", ["", " \n\t", [], (), ["", " "]])
def test_an_empty_input_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^The input is empty; say what the agent shall do\.$"):
        to_parts(value)


@pytest.mark.parametrize("value", [7, None, b"bytes", ["a", 7], {"a": 1}, [["a"]]])
def test_an_input_of_another_kind_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="pass text"):
        to_parts(value)


class Colour(Enum):
    RED = "red"


@dataclass
class Receipt:
    order: str
    on: date


class Line(BaseModel):
    sku: str


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("done", "done"),
        (None, "Done; the call returned no value (null)."),
        ("", "(an empty text)"),
        (b"", "(an empty text)"),
        (7, "7"),
        (True, "true"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (["a", "b"], '["a","b"]'),
        ([], "[]"),
        (("a", 1), '["a",1]'),
        ({"x"}, '["x"]'),
        (Colour.RED, '"red"'),
        (Receipt("7", date(2026, 1, 31)), '{"order":"7","on":"2026-01-31"}'),
        ([Line(sku="s")], '[{"sku":"s"}]'),
        ("a\ud800b", "a\ufffdb"),
        (["a\ud800b"], '["a\ufffdb"]'),
    ],
)
def test_results_become_text(value: Any, text: str) -> None:
    artifacts = Artifacts()
    parts = result_parts(value, artifacts)
    assert parts == (Text(text),)
    # What is live is what the log will say.
    event = CallEnded(1, "ok", parts)
    assert decode_event(encode_event(event)) == event


async def test_results_with_media_become_several_parts() -> None:
    artifacts = Artifacts()
    kept = artifacts.put(b"%PDF-", "application/pdf", "a.pdf")
    picture = artifacts.put(PNG, "image/png")
    parts = result_parts(["see:", Image(PNG, name="r.png"), kept, picture, b"plain", {"a": 1}, None], artifacts)
    assert parts == (
        Text("see:"),
        Media("image", digest_of(PNG), "image/png", 12, "r.png"),
        Media("document", kept.digest, "application/pdf", 5, "a.pdf"),
        Media("image", digest_of(PNG), "image/png", 12),
        Media("document", digest_of(b"plain"), "text/plain", 5),
        Text('{"a":1}'),
        Text("Done; the call returned no value (null)."),
    )
    assert result_parts(Document(b"text"), artifacts) == (Media("document", digest_of(b"text"), "text/plain", 4),)
    for digest in (digest_of(PNG), kept.digest, digest_of(b"plain"), digest_of(b"text")):
        assert digest_of(await artifacts.get(digest)) == digest


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "cannot be written as JSON"),
        (lambda: 1, "cannot be written as JSON"),
        (b"\xff\x00", "2 bytes that are no text"),
        (["a", b"\xff"], "1 bytes that are no text"),
        (Artifact("0" * 32, "image/png", 3), "did not put"),
        ([Image(PNG), object()], "cannot be written as JSON"),
    ],
)
def test_results_that_no_model_can_read_are_value_errors(value: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        result_parts(value, Artifacts())

"""Markdown as rich shows it, with every heading at the margin; heavy, so loaded only where it is shown."""

from __future__ import annotations

from typing import ClassVar

from rich.markdown import Heading, Markdown


class LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class LeftMarkdown(Markdown):
    elements: ClassVar = {**Markdown.elements, "heading_open": LeftHeading}

"""What a person types in a chat: lines with a history and slash commands, or the lines of a pipe."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from perdure.cli.terminal import data_folder


class SlashCompleter(Completer):
    """Offers commands at the beginning of a line that starts with a slash."""

    def __init__(self, commands: dict[str, str]) -> None:
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        typed = document.text_before_cursor
        if typed.startswith("/"):
            for name, meaning in self._commands.items():
                if name.startswith(typed):
                    yield Completion(name, start_position=-len(typed), display_meta=meaning)


async def read_lines(commands: dict[str, str], toolbar: Callable[[], str]) -> AsyncIterator[str]:
    """Until Ctrl-D, or the end of the pipe; Ctrl-C at the prompt empties it."""
    if not sys.stdin.isatty():
        while line := await asyncio.to_thread(sys.stdin.readline):
            yield line.strip()
        return
    prompt: PromptSession[str] = PromptSession(
        history=FileHistory(str(data_folder() / "chat-history")),
        key_bindings=_keys(),
        completer=SlashCompleter(commands),
        multiline=True,
        prompt_continuation="  ",
        bottom_toolbar=toolbar,
        reserve_space_for_menu=4,
    )
    while True:
        try:
            yield (await prompt.prompt_async("> ")).strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction] - bound by the decorator
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction] - bound by the decorator
        event.current_buffer.insert_text("\n")

    return keys

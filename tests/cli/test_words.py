"""Words for people: short, and safe on a terminal."""

from __future__ import annotations

import pytest

from perdure.cli.canvas import split_blocks
from perdure.cli.words import count, list_arguments, shell, shorten, show_arguments, show_seconds, visible


def test_controls_are_written_out_and_letters_are_left_alone() -> None:
    assert visible("a\tb\nc\r\nd") == "a\tb\nc\nd"
    assert visible("\x1b[2J\x07\x9b31m\u202egnp\r") == r"\x1b[2J\x07\x9b31m\u202egnp\r"
    assert visible("Zoë 👩‍🚀 日本") == "Zoë 👩‍🚀 日本"


def test_arguments_as_in_a_call() -> None:
    assert show_arguments('{"order":"7","cents":990}', 40) == 'order="7", cents=990'
    assert show_arguments("", 40) == ""
    assert show_arguments('{"order":', 40) == '{"order":'
    assert show_arguments("[1,2]", 40) == "[1,2]"
    assert show_arguments('{"text":"' + "a" * 90 + '"}', 20) == 'text="aaaaaaaaaaaaa…'
    assert shorten("a\n  b", 40) == "a b"
    assert list_arguments({"to": "ann", "text": "x" * 500}) == ['to    "ann"', f'text  "{"x" * 500}"']


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0014, "1 ms"), (0.9996, "1000 ms"), (1, "1.0 s"), (59.9, "59.9 s"), (61, "1 min 1 s"), (3700, "1 h 1 min")],
)
def test_how_long(seconds: float, shown: str) -> None:
    assert show_seconds(seconds) == shown
    assert show_seconds(86400 * 3 + 7200) == "3 d 2 h"


def test_counts_and_commands() -> None:
    assert [count(1, "turn"), count(1200, "turn"), count(2, "process", "processes")] == [
        "1 turn",
        "1,200 turns",
        "2 processes",
    ]
    assert (
        shell("resume", "my order", agent="a.py:b", store=None, tenant="") == "perdure resume 'my order' --agent a.py:b"
    )


def test_an_answer_is_cut_between_its_blocks_only() -> None:
    fenced = "```python\na = 1\n\nb = 2\n```\n"
    loose = "1. one\n\n   more of one\n\n2. two\n"
    assert split_blocks(f"# Title\n\n{fenced}\n{loose}") == [
        "# Title\n\n",
        f"{fenced}\n",
        "1. one\n\n   more of one\n\n",
        "2. two\n",
    ]
    assert split_blocks("\n\n  indented") == ["\n\n  indented"]
    for text in ("", "a", "a\n\n\nb\n\n", f"~~~\n{fenced}\n\n~~~ \n\nc"):
        assert "".join(split_blocks(text)) == text

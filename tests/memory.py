"""Where tests write: in memory, if there is room. Processes are killed, never the machine: no test needs the disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import gettempdir

from perdure.testing.sweep import memory_folder

ROOM = 8 << 30
"""So many bytes have to be free: what failed is kept, and some servers live at once."""


def roomy_folder() -> Path:
    memory = memory_folder()
    has_room = memory is not None and shutil.disk_usage(memory).free > ROOM
    return memory if memory and has_room else Path(gettempdir())

"""Starts the ``gopccl`` program that comes inside the wheel."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Replace this process by the program, with the same arguments."""
    name = "gopccl.exe" if sys.platform == "win32" else "gopccl"
    program = str(Path(__file__).parent / "lib" / name)
    if sys.platform == "win32":
        import subprocess

        sys.exit(subprocess.call([program, *sys.argv[1:]]))
    os.execv(program, [program, *sys.argv[1:]])

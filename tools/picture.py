"""Draw a command's output as a picture for the documentation.

    .venv/bin/python tools/picture.py docs/images/demo.svg "make demo" -- .venv/bin/nvshare demo --json build/demo.json

The picture needs no network: it names fonts, and loads none.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 132


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("title")
    parser.add_argument("--tail", type=int, help="only the last lines")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    output = subprocess.run(arguments.command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = output.rstrip().splitlines()[-(arguments.tail or 0) :]
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text(f"$ {arguments.title}", style="bold green"))
    for line in lines:
        console.print(Text(line, style="bold" if "===" in line else ""))
    svg = console.export_svg(title=arguments.title)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    arguments.picture.write_text(svg)


if __name__ == "__main__":
    main()

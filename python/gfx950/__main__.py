"""Entry of `python -m gfx950`; cli/app.py has the commands."""

import sys

try:
    from gfx950.cli.app import app
except ModuleNotFoundError as error:
    library = error.name.partition(".")[0]
    if library not in ("msgspec", "rich", "typer"):
        raise
    sys.exit(f"python -m gfx950 needs {library}: pip install 'mx_kernels[gfx950]'")

if __name__ == "__main__":
    app(prog_name="python -m gfx950")

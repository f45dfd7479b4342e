"""Entry of `python -m gfx950`; cli/app.py has the commands."""

from gfx950.cli.app import app

if __name__ == "__main__":
    app(prog_name="python -m gfx950")

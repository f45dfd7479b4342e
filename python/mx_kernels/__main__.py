"""Entry of `python -m mx_kernels`; cli.py has the commands."""

import sys

try:
    from mx_kernels.cli import app
except ModuleNotFoundError as error:
    library = (error.name or "").partition(".")[0]
    if library not in ("rich", "typer"):
        raise
    sys.exit(f"python -m mx_kernels needs {library}: pip install 'mx_kernels[cli]'")

if __name__ == "__main__":
    app(prog_name="python -m mx_kernels")

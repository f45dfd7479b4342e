"""Tries an installed wheel, in the environment that runs this and with what that has.

    python tests/house/installed.py [ADDRESS]

Run it from an empty folder. Without ADDRESS, no link of the README may be relative; with one, links
to files must begin with it.
"""

import contextlib
import doctest
import importlib.metadata
import io
import re
import subprocess
import sys
from pathlib import Path

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main(address: str = "") -> None:
    """Runs the README that the wheel carries, and the commands."""
    text = importlib.metadata.metadata("mx_kernels").get_payload()
    links = re.findall(r"\]\(([^)]*)\)", re.sub(FENCE, "", text))
    relative = [link for link in links if not link.startswith("https://")]
    assert not relative, f"an index cannot follow {relative}"
    assert bool(address) == any(address and link.startswith(address) for link in links), links

    namespace = {"__name__": "tour"}
    blocks = FENCE.findall(text)
    assert blocks, "no tour"
    for block in blocks:
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, namespace, "tour", None, 0)
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            assert not runner.run(test, clear_globs=False).failed
            namespace.update(test.globs)
        else:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(block, namespace)
    import mx_kernels  # noqa: PLC0415  what the tour has imported

    package = Path(mx_kernels.__file__).parent
    assert "site-packages" in package.parts, f"{package} is no installed wheel"
    command("doctor")
    stems = {path.stem for path in (package / "examples").glob("*.py")}
    assert {"torch_model", "max_graph", "gpt_oss"} <= stems
    assert stems <= set(command("examples").split())
    command("examples", "torch_model", "spirals.pt")
    command("examples", "gfx950_kernel", "--copy", "copied")
    assert {path.suffix for path in Path("copied").iterdir()} == {".py", ".mojo"}
    print(f"mx_kernels {mx_kernels.__version__} works as its README says")


def command(*words: str) -> str:
    """Runs a command of the package and returns what it prints."""
    run = [sys.executable, "-m", "mx_kernels", *words]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(run)}\n{done.stdout}{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    main(*sys.argv[1:])

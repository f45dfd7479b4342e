"""What MkDocs asks of us: pictures and tables that are made while the site is built.

    pictures/NAME.svg         drawn by a function of `made.pictures.every()`
    results/FILE.png          copied from where benchmarks and the ladder keep them
    <!-- made: NAME -->       replaced in a page by the text of a function of `made.texts.TEXTS`

A picture or a text that no page uses, and a name that nobody makes, is an error.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path += [str(DOCS), str(ROOT)]

from made import pictures  # noqa: E402
from made.texts import TEXTS  # noqa: E402

KEPT = (*sorted(ROOT.glob("bench/results/*.png")), *sorted(ROOT.glob("examples/ladder/*.png")))
MARK = re.compile(r"^<!-- made: (\w+) -->$", re.MULTILINE)
PICTURE = re.compile(r"\]\((?:\.\./)*pictures/([\w-]+)\.svg\)")
_used: set[str] = set()


def on_config(config):
    """Lets pages include files of the repository, wherever the command is started."""
    config.mdx_configs["pymdownx.snippets"]["base_path"] = [str(ROOT)]
    return config


def on_files(files, config):
    """Adds pictures: drawn now, or kept beside the numbers that they show."""
    _used.clear()
    for name, drawn in pictures.every().items():
        files.append(File.generated(config, f"pictures/{name}.svg", content=drawn()))
    for path in KEPT:
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Replaces marks by what they name."""

    def text(match: re.Match) -> str:
        if match[1] not in TEXTS:
            raise PluginError(f"{page.file.src_uri}: nobody makes {match[1]!r}: {sorted(TEXTS)}")
        _used.add(match[1])
        return TEXTS[match[1]]()

    markdown = MARK.sub(text, markdown)
    _used.update(PICTURE.findall(markdown))
    return markdown


def on_env(env, config, files):
    """Refuses what is made for no page."""
    if unused := (set(pictures.every()) | set(TEXTS)) - _used:
        raise PluginError(f"no page shows {sorted(unused)}")

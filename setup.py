"""What pyproject.toml cannot say of a release: its README and its links.

An index shows the README alone, so that links to files of the repository need an address. It is
that of the repository whose workflow builds the release, as GitHub names it; elsewhere there is
none, and such links become plain text.
"""

import os
import re
from pathlib import Path

from setuptools import setup

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
FROM_A_CLONE = re.compile(r" @ git\+ADDRESS(\W)  #.*")


def address_of(environment: dict[str, str]) -> str:
    """Returns the repository's address; "" if nothing says it."""
    names = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_REPOSITORY")
    return "/".join(names) if all(names) else ""


def readme_of(text: str, address: str, revision: str) -> str:
    """Returns the README for an index.

    Args:
        text: the README of the repository.
        address: the repository's; "" for none.
        revision: a tag or a commit of it.
    """

    def link(match: re.Match) -> str:
        is_picture, words, path = match.groups()
        if not address:
            return "" if is_picture else words
        kind = "raw" if is_picture else "blob"
        return f"{is_picture}[{words}]({address}/{kind}/{revision}/{path})"

    return FROM_A_CLONE.sub(r"\1", LINK.sub(link, text))


if __name__ == "__main__":
    address, revision = address_of(os.environ), os.environ.get("GITHUB_REF_NAME", "main")
    files = {"Changelog": "CHANGELOG.md", "Documentation": "docs/pages/index.md"}
    links = {name: f"{address}/blob/{revision}/{path}" for name, path in files.items()}
    setup(
        long_description=readme_of(
            Path("README.md").read_text(encoding="utf-8"), address, revision
        ),
        long_description_content_type="text/markdown",
        project_urls={"Repository": address, **links} if address else {},
    )

"""Examples of docstrings, lines that begin with `>>>`, as code: Markdown would quote them."""

import re

from griffe import Extension

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Doctests(Extension):
    """Puts fences around examples."""

    def on_object(self, *, obj, **_):
        """Changes the docstring of what has been read."""
        if obj.docstring:
            fenced = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
            obj.docstring.value = fenced

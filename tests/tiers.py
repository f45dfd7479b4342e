"""The two tiers: `make test` runs what is not marked `deep`, `make test-deep` everything.

The first tier makes every claim once, in every room: at this CPU's best instruction level, on
one tile of each distinct kernel. The second adds all levels and architectures, whole grids of
shapes, all mutations. Mark a test, or those of its parameters that only the second needs:

    @pytest.mark.deep
    @pytest.mark.parametrize("shape", tiered(SHAPES, first=SHAPES[:1]))
"""

import pytest

deep = pytest.mark.deep


def tiered(values, first):
    """Returns parameters; those that are not in `first` are for the second tier alone."""
    return [value if value in first else pytest.param(value, marks=deep) for value in values]

"""The two tiers: `make test` runs what is not marked `deep`, `make test-deep` everything.

The first tier makes every claim once, in every room: at this CPU's best instruction level, on
one tile of each distinct kernel. The second adds all levels and architectures, whole grids of
shapes, all mutations. Mark a test, or those of its parameters that only the second needs:

    @pytest.mark.deep
    @pytest.mark.parametrize("shape", tiered(SHAPES, first=SHAPES[:1]))
"""

import itertools

import pytest

deep = pytest.mark.deep


def tiered(values, first):
    """Returns parameters; those that are not in `first` are for the second tier alone."""
    return [value if value in first else pytest.param(value, marks=deep) for value in values]


def late_by_turns(**axes):
    """Parametrizes by all combinations of values, and `late`: whether memory answers late.

    Neighbours along every axis differ in that.
    """
    places = itertools.product(*(range(len(values)) for values in axes.values()))
    cases = [
        (
            *(values[at] for values, at in zip(axes.values(), place, strict=True)),
            sum(place) % 2 == 1,
        )
        for place in places
    ]
    return pytest.mark.parametrize([*axes, "late"], cases)

"""What a model calls the parameters of a checkpoint.

    mlp.shared_expert.up_proj.weight     another program's name: renamings of the class make it
    mlp.shared_experts.up_proj.weight    the model's own, as `save_pretrained` writes ours

Codes cannot be cut and joined like floats, so our models are saved under their own names. The
renamings and conversions that transformers has for a class are for the names of other programs, and
not all of them leave own names alone: they apply to a whole checkpoint, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    apply_renamings,
    dot_natural_key,
    rename_source_key,
)
from transformers.modeling_utils import PreTrainedModel


@dataclass(frozen=True)
class Names:
    """What a model calls the parameters of a checkpoint."""

    homes: Mapping[str, str]
    """The model's name for each that it has."""
    joined: Mapping[str, tuple[str, str]]
    """Of those that the model joins with others or cuts its name, and what in theirs says so."""
    are_own: bool
    """Whether the checkpoint has the model's own names."""


def names_in(model: PreTrainedModel, names: Iterable[str], *, are_saved: bool) -> Names:
    """Returns what a model calls the parameters of a checkpoint.

    Own names or others are what finds more of the model; `are_saved`, which says that
    `save_pretrained` wrote them, decides where both find as much.
    """
    # In this order transformers renames, and some renamings depend on what came before.
    names, own = sorted(names, key=dot_natural_key), model.state_dict()
    as_they_are = _named(model, names, own, [])
    renamed = _named(model, names, own, get_model_conversion_mapping(model))
    found = len(set(as_they_are.homes.values())), len(set(renamed.homes.values()))
    is_own = found[0] > found[1] or (found[0] == found[1] and are_saved)
    return as_they_are if is_own else renamed


def _named(
    model: PreTrainedModel,
    names: Iterable[str],
    own: Mapping[str, Tensor],
    changes: list[WeightTransform],
) -> Names:
    """Returns what a model calls parameters after these changes, as transformers finds it."""
    renamings, converters = split(changes)
    where = {"base_model_prefix": model.base_model_prefix, "meta_state_dict": own}
    homes, joined = {}, {}
    for name in names:
        key, _ = rename_source_key(name, renamings, [], **where)
        if key not in own:
            key, pattern = rename_source_key(name, renamings, converters, **where)
            if pattern is not None and key in own:
                joined[name] = key, pattern
        if key not in own:
            key, _ = rename_source_key(name, [], [], **where)
        if key in own:
            homes[name] = key
    return Names(homes, joined, are_own=not changes)


def split(changes: list[WeightTransform]) -> tuple[list[WeightRenaming], list[WeightConverter]]:
    """Returns renamings and conversions apart."""
    return (
        [change for change in changes if isinstance(change, WeightRenaming)],
        [change for change in changes if isinstance(change, WeightConverter)],
    )


class Renamed(WeightRenaming):
    """Renames what a table has by it, and nothing else of that; the rest as other renamings do."""

    __slots__ = ("others", "table")

    def __init__(self, table: Mapping[str, str], others: list[WeightRenaming]):
        super().__init__("", "")
        self.table: Mapping[str, str] = table
        self.others: list[WeightRenaming] = others

    def rename_source_key(self, source_key: str) -> tuple[str, str | None]:
        """Returns the new name; and no pattern, which is asked of conversions alone."""
        if source_key in self.table:
            return self.table[source_key], None
        return apply_renamings(source_key, self.others), None

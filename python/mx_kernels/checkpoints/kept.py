"""Which weights of a checkpoint of floats stay floats, told from names alone.

    embeddings  tables of tokens, positions, patches, in which rows are looked up
    heads       output layers, where an error is one of the answer
    routers     which experts: small matrices, and an error there changes everything
    norms       and what modulates them; biases that are tables
    towers      what reads pictures or sound for a language model, and what joins the two; but
                where nothing else is there, the tower is the model

`conversion.rules` knows more of a model than a file does, and is the home of the names that both
ask about. Where a name could be either, the weight is kept: `include` of `convert` overrules it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mx_kernels.conversion.rules import GATE_NAMES, HEADS, ROUTER_NAME, TOWERS, in_towers

EMBEDDING = re.compile(r"\w*embed\w*|w[tp]e|(\w+_)?emb|pos\w*_enc\w*|positions?", re.I)
"""Last names of modules that are embeddings."""
EMBEDDINGS = re.compile(r"(\w+_)?(embed(ding)?s?|embedder|emb)", re.I)
"""Names of modules that hold embeddings."""
HEAD = re.compile(r"(\w+_)?heads?|scores?|\w*classifier\w*|qa_outputs|cls", re.I)
"""Names of modules that are output layers, or hold them."""
OUTPUT = re.compile(r"output(_layer|_projection)?|proj_out|decoder|final_linear|shared", re.I)
"""Last names of output layers outside of numbered layers, and of T5's embedding."""
GATE = re.compile(rf"((moe|mlp|ffn|experts?)_)?({'|'.join(GATE_NAMES)})|(moe_)?gating", re.I)
"""Names of modules that are routers, or hold one, but for experts' own."""
OF_AN_EXPERT = re.compile(r"(^|\.)experts\.\d+(\.|$)")
NORM = re.compile(r"norm|(^|_)ln(_|\d*$)", re.I)
BIAS = re.compile(r"(^|_)(bias(es)?|relative|rel_pos)(_|$)", re.I)


def kept(names: Iterable[str]) -> set[str]:
    """Returns the names of parameters, of all of a checkpoint's, that stay floats."""
    names = list(names)
    stay = {name for name in names if _is_kept(name)}
    # A part of a checkpoint may have none of the names of a language model.
    towers = in_towers(names)
    towers |= {name for name in names if any(map(TOWERS.fullmatch, name.split(".")))}
    is_whole = all(name in stay | towers for name in names if name.endswith("weight"))
    return stay if is_whole else stay | towers


def _is_kept(name: str) -> bool:
    """Says whether a parameter stays as it is, whatever is beside it."""
    modules = name.split(".")[:-1]
    if not modules:
        return False
    last = modules[-1]
    is_numbered = any(part.isdigit() for part in modules)
    return bool(
        EMBEDDING.fullmatch(last)
        or BIAS.search(last)
        or (OUTPUT.fullmatch(last) and not is_numbered)
        or any(map(EMBEDDINGS.fullmatch, modules))
        or any(part in HEADS or HEAD.fullmatch(part) for part in modules)
        or any(map(ROUTER_NAME.search, modules))
        or (any(map(GATE.fullmatch, modules)) and not OF_AN_EXPERT.search(name))
        or any(map(NORM.search, modules))
    )

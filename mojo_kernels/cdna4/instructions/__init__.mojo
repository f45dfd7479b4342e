"""CDNA4 instructions that the language does not name; no other room spells an intrinsic."""

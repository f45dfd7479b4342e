"""The decode kernels that the dispatch table names and `decode.mojo` lacks: for any K where the row
is, fused, or for codes where it is for those only; and those of contest shapes, for whole chunks.

They are listed by name, so that they stay as they are when costs and choices change;
`test_decode.py` says that the table has these and no others.
"""

from std.os import abort
from std.python import PythonObject

from named import show_linear, show_matmul

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor

comptime LINEAR: List[StaticString] = [
    "m1n1w4ut",
    "m1n2w4ut",
    "m2n6w4t",
    "m2n6w2t",
    "m1n1w16ut",
    "m1n4w8s7ut",
    "m1n2w16t",
    "m1n4w8s4t",
    "m1n4w8t",
    "m1n1w2t",
    "m1n4w12t",
    "m1n2w8s4t",
    "m2n4w8s4t",
    "m1n2w8t",
    "m2n4w8t",
    "m2n8w8t",
    "m4n8w4d2h4t",
]
comptime MATMUL: List[StaticString] = ["m2n4w16t"]
comptime CONTEST: List[StaticString] = ["m1n2w4u", "m1n4w8s7u", "m2n4w8"]


struct Choices(Catalogue):
    """All of them."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for i in range(len(LINEAR)):
            show_linear[LINEAR[i]](visitor)
        comptime for i in range(len(MATMUL)):
            show_matmul[MATMUL[i]](visitor)
        comptime for i in range(len(CONTEST)):
            show_linear[CONTEST[i]](visitor)
            show_matmul[CONTEST[i]](visitor)
        show_matmul["m2n6w12d3h3u"](visitor)


@export
def PyInit_choices() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Choices]("choices")
    except error:
        abort(String("cannot create choices: ", error))

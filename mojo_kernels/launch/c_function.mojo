"""Functions of C libraries, by address: those of a driver or a runtime that the process has."""

from std.ffi import CStringSpan, c_char


@always_inline
def c_function[Signature: TrivialRegisterPassable](address: Int) -> Signature:
    """Returns the C function at an address."""
    return Pointer(to=address).unsafe_bitcast[Signature]()[]


def words_at(address: Int) -> String:
    """Returns the text that a C function returned the address of."""
    var words = ImmPointer[c_char, ImmutAnyOrigin](unsafe_from_address=address)
    return String(StringSpan(unsafe_from_utf8=CStringSpan(unsafe_from_ptr=words)))

"""Functions of C libraries, by address: those of a driver or a runtime that the process has."""


@always_inline
def c_function[Signature: TrivialRegisterPassable](address: Int) -> Signature:
    """Returns the C function at an address."""
    return Pointer(to=address).unsafe_bitcast[Signature]()[]

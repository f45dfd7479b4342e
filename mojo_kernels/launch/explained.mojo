"""A launch in words and numbers, for who asks what would happen."""

from .grid import Grid


@fieldwise_init
struct Explained(Copyable, Movable):
    """A launch."""

    var name: StaticString
    """What it does for the operation."""
    var file: StaticString
    """Of the kernel, within the package."""
    var reason: StaticString
    var cut: String
    """Of a product."""
    var tile_m: Int
    """Rows of a workgroup; 0 where it has no tile."""
    var tile_n: Int
    """Columns of a workgroup."""
    var grid: Grid

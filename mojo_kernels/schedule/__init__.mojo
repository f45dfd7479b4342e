"""Which tile of C comes next: the layer under every kernel's "my tile"."""

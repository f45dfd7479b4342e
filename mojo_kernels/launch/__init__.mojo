"""Where launches go: one trait for a kernel's own words, a file a kind of queue."""

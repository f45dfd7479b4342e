"""Small M: waves share K, and workgroups may too."""

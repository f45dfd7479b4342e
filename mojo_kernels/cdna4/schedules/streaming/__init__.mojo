"""Few rows: waves share K, and workgroups may too."""

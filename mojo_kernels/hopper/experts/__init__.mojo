"""Products of experts: tiles of rows that go to the same expert."""

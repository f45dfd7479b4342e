"""How codes and floats become the bfloat16 pairs that tensor cores multiply."""

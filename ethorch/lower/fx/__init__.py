"""What an FX graph says: facts of a node, control flow, and a builder of ATen nodes."""

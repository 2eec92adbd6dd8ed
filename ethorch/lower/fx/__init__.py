"""FX graphs: node properties, control flow, mutable buffers, export and an ATen builder."""

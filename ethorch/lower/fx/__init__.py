"""FX graphs: properties of nodes, control flow, states, and a builder of ATen nodes."""

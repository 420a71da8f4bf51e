"""The laboratory: what trains, measures and draws with the library."""

"""The laboratory's own GPU kernels, one a module; each imports Triton, so import it where it is used."""

"""Stand-in for the CUDA kernels, of which sglang 0.5.9 imports a few on a CPU as well."""

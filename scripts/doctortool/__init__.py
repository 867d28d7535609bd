"""Says what of an installation is well, and how to fix the rest."""

"""Takes the pins to new releases of sglang: lint, lock, check, drift, rebase; may use git."""

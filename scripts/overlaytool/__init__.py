"""The patch tool: puts the overlay on a pinned sglang tree, and takes it off again."""

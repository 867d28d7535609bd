"""Reads a step by gathering: `rows` picks the rows, `gather` casts them, `reading` does both."""

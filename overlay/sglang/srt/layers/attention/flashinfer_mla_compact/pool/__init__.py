"""The FP8 pool: its `format`, the pool as a layer sees it (`layer_pool`), and how it is written."""

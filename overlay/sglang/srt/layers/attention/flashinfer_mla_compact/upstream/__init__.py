"""What differs by sglang's release stands here and nowhere else.

settings.py       the settings and buffers of the process
runner.py         what a model runner says of its model
pools.py          the KV pools: their rows, their format, how they write
updaters.py       the updaters that plan a step's indices
older_backend.py  a backend of a release that has the pool on each batch
"""

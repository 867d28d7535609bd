"""The attention kernels. All take the same arguments and give the same numbers.

plain.py         Triton, for every card
mma.py           Gluon on mma.sync, up to 32 query rows; mma_tile.py is what it does with one tile
wgmma.py         Gluon on wgmma, 64 query rows; wgmma_scores.py is the warpgroup that makes weights
gluon.py         what the Gluon kernels share
codecs.py        assembly that turns FP8 into float16
"""

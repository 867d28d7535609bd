"""Reads FP8 rows where they lie, by split-KV attention. Imports nothing of ours outside itself.

reading.py         a reading, called as a FlashInfer wrapper is
attend.py          workspace, plan and attention: the functions to call from elsewhere
configs.py         which kernel, tile and number of warps each card takes
work.py            the fields of a work item and the widths of a row
splits.py          kernels that cut KV ranges into work items, and merge what they give
triton_release.py  what differs by Triton's release
kernels/           the attention kernels: plain (all cards), mma (Gluon), wgmma (Gluon, Hopper)
"""

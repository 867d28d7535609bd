"""What a GPU kernel is, told from its name, and how many elements a copy kernel moves."""

from __future__ import annotations

import re
from functools import cache

FLASHINFER_MLA = "attention, FlashInfer MLA"
FLASH_ATTENTION = "attention, FlashAttention"
COMPACT_DIRECT = "attention, compact's own kernel"
COMPACT_GATHER = "compact's gather of the active rows"
PREFILL = "attention, prefill"
COPY = "copies"

# The first pattern that is found names the family. Attention kernels stand before matrix products,
# as their template arguments name GEMM parts too.
_FAMILIES = [
    (COMPACT_GATHER, r"^gather_rows_kernel"),
    (COMPACT_DIRECT, r"^attend_splits"),
    ("compact's planning", r"^(?:claim|translate|find)_kernel|^plan_splits"),
    (FLASHINFER_MLA, r"BatchMLAPage"),
    (
        PREFILL,
        r"WithRaggedKV|flashinfer::PrefillWithKVCacheKernel|_fwd_kernel_unified|^_fwd_kernel$"
        r"|fmhaSm\d+\w*Context",
    ),
    ("attention, FlashMLA", r"flash_fwd_splitkv_mla|flash_fwd_mla|sm90::decode|flash_mla"),
    (FLASH_ATTENTION, r"FlashAttnFwd|flash_fwd_kernel|flash_fwd_splitkv_kernel"),
    ("attention, Triton", r"_fwd_(?:grouped_)?kernel_stage1"),
    ("attention, TensorRT-LLM", r"fmhaSm\d+|kernel_mha"),
    ("attention, CUTLASS MLA", r"Sm100FmhaMla|cutlass_mla"),
    ("attention, FlashInfer", r"WithPagedKVCache|flashinfer::.*(?:Decode|Prefill)\w*Kernel"),
    ("attention merge", r"^merge_splits|combine|stage2|MergeState|VariableLengthMerge"),
    ("all-reduce and other collectives", r"nccl|all_?reduce|all_?gather|reduce_scatter"),
    ("experts", r"moe|expert|topk_softmax|grouped_topk|topkGating"),
    ("matrix products", r"gemm|gemv|nvjet|cutlass|cublas|matmul|splitKreduce|^Cijk_"),
    ("norms", r"rms_?norm|layer_?norm"),
    ("rotary embedding", r"rotary|rope"),
    ("quantisation", r"quant"),
    ("KV writes", r"set_mla_kv|set_kv_buffer|store_cache|^write_rows_kernel"),
    (COPY, r"direct_copy_kernel_cuda|Memcpy|float8_copy_kernel|^triton_poi_fused__to_copy_\d+$"),
    ("element-wise", r"at::native|elementwise|triton_poi|Memset|act_and_mul"),
]
_FAMILY_PATTERNS = [(family, re.compile(pattern, re.I)) for family, pattern in _FAMILIES]

# Families whose patterns are parts of words; attention kernels that are new may match them.
_BROAD = frozenset({"experts", "matrix products", "quantisation", "element-wise"})
_LIKE_ATTENTION = re.compile(r"attn|attention|fmha|flash|paged|mla(?!_kv)", re.I)
_ONCE_A_PASS = re.compile(
    r"vectorized_gather_kernel|indexSelect|(?<!rotary_)embedding|arg_?max|multinomial|sampl"
    r"|kv_indices|Memcpy (?:HtoD|DtoH)",
    re.I,
)

# PyTorch's copy kernels. Elements a thread: the template argument after the pointer array
# (unrolled) or the second one (strided); the vectorised kernel's depends on the build.
_COPY_KERNEL = re.compile(
    r"direct_copy_kernel_cuda|float8_copy_kernel_cuda|^triton_poi_fused__to_copy_\d+$"
)
_UNROLLED = re.compile(r"unrolled_elementwise_kernel<.*?array<char\s*\*, \dul?>, (\d+),")
_STRIDED = re.compile(r"::elementwise_kernel<\d+, (\d+),")


@cache
def family(name: str) -> str:
    """The family of a kernel; its own short name where no pattern knows it."""
    for label, pattern in _FAMILY_PATTERNS:
        if pattern.search(name):
            return label
    return short_name(name)


@cache
def is_attention(name: str) -> bool:
    """Whether the kernel is a layer's attention over the KV pool; prefill's and merges are not."""
    label = family(name)
    return label.startswith("attention, ") and label != PREFILL


@cache
def is_unknown(name: str) -> bool:
    """Whether no family knows the kernel, or one knows it by a part of what may be attention."""
    label = family(name)
    return label == short_name(name) or (label in _BROAD and is_like_attention(name))


@cache
def is_like_attention(name: str) -> bool:
    """Whether the name of a kernel has a word of attention in it."""
    return bool(_LIKE_ATTENTION.search(name))


@cache
def runs_once(name: str) -> bool:
    """Whether the kernel belongs to the start or the end of a forward pass, to no layer."""
    return bool(_ONCE_A_PASS.search(name))


@cache
def is_copy(name: str) -> bool:
    """Whether the kernel is what `Tensor.to` and `copy_` launch to write a tensor anew."""
    return bool(_COPY_KERNEL.search(name))


@cache
def elements_per_thread(name: str) -> int | None:
    """How many elements each thread of a copy kernel moves; None where the name does not tell."""
    found = _UNROLLED.search(name) or _STRIDED.search(name)
    return int(found[1]) if found else None


@cache
def short_name(name: str) -> str:
    """A kernel's bare name: no return type, namespaces, template or call arguments."""
    bare = re.sub(r"\(anonymous namespace\)::", "", name.removeprefix("void "))
    bare = re.split(r"[<(]", bare, maxsplit=1)[0]
    return bare.split("::")[-1].strip() or name[:40]

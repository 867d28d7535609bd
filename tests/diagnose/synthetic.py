"""Makes traces laid out as Kineto lays them out: what a decode server on one GPU records.

Run as a module, it writes the synthetic traces in data/, after the first report's server.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]

MLA_ROW = 576
GLM5_ROWS = 495_553  # 495,552 tokens and the padding slot
DEVICE = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
LAMBDA = (
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() "
    "const::{lambda()#12}::operator()() const::{lambda(c10::BFloat16)#1}"
)
CAST = (
    f"void at::native::unrolled_elementwise_kernel<{LAMBDA}, std::array<char*, 2ul>, 4, "
    "TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, "
    "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >"
    f"(int, {LAMBDA}, std::array<char*, 2ul>)"
)
VECTORIZED = (
    f"void at::native::vectorized_elementwise_kernel<4, {LAMBDA}, std::array<char*, 2ul> >"
    f"(int, {LAMBDA}, std::array<char*, 2ul>)"
)
ATTENTION = {
    "flashinfer": "void flashinfer::mla::BatchMLAPagedAttentionKernel<flashinfer::mla::"
    "KernelTraits<true, 2u>, flashinfer::MLAParams<__nv_bfloat16> >(flashinfer::MLAParams)",
    "fa3": "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
    "flash::CollectiveMainloopFwdSm90<2> > > >(flash::FlashAttnFwdSm90::Params)",
    "novel": "my_very_own_attention_kernel",
}
GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
NORM = "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, int)"
SAMPLER = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ArgMaxOps> >(int)"
GATHER = "gather_rows_kernel"
EMBEDDING = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)"


@dataclass
class Server:
    """What the traced server is and how its profiler was set."""

    layers: int = 78
    steps: int = 4
    rows: int = GLM5_ROWS
    cast_us: float = 828.2
    attention: str = "flashinfer"
    fp8: bool = True
    compact: bool = False
    graphs: bool = True
    spans: bool = False
    mode: str = "DECODE"
    shapes: bool = False
    grids: bool = True
    cast_kernel: str = CAST
    pieces: int = 1
    attention_us: float = 30.0
    gemm_us: float = 280.0
    device: int = 0
    rank: str = ""


class Clock:
    """Lays kernels end to end on the GPU and hands out correlation ids."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.now = 5_124_676_869_388.622
        self.correlation = 1000
        self.graph = 0

    def kernel(self, name: str, duration: float, elements: int, external: int = 0) -> Event:
        self.correlation += 1
        arguments: dict[str, Any] = {
            "External id": external,
            "queued": 0,
            "device": self.server.device,
            "context": 1,
            "stream": 7,
            "correlation": self.graph or self.correlation,
            "registers per thread": 32,
            "shared memory": 0,
        }
        if self.server.grids:
            arguments |= {"grid": [-(-elements // 512), 1, 1], "block": [128, 1, 1]}
        event = {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": f"{self.server.rank} {self.server.device}".strip()
            if self.server.rank
            else self.server.device,
            "tid": 7,
            "ts": self.now,
            "dur": duration,
            "args": arguments,
        }
        self.now = round(self.now + duration + 0.5, 3)
        return event

    def runtime(self, name: str) -> Event:
        arguments = {"cbid": 311, "correlation": self.graph or self.correlation}
        return {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": name,
            "pid": 8798,
            "tid": 8798,
            "ts": self.now - 5,
            "dur": 3.1,
            "args": arguments,
        }


def events(server: Server) -> Iterator[Event]:
    """The events of `server.steps` decode steps, the host's ones among them."""
    clock = Clock(server)
    yield {"ph": "M", "name": "process_name", "ts": 0, "pid": 8798, "args": {"name": "python"}}
    for step in range(server.steps):
        start = clock.now
        if server.graphs:
            clock.correlation += 1
            clock.graph = clock.correlation
            yield clock.runtime("cudaGraphLaunch")
        yield clock.kernel(EMBEDDING, 3.0, 6144)
        for layer in range(server.layers):
            yield from _layer(clock, step, layer)
        yield clock.kernel(GEMM, 90.0, 1 << 19)
        if server.spans:
            yield _span(server, start, clock.now)
        clock.graph = 0
        yield clock.kernel(SAMPLER, 12.0, 1 << 17)
        clock.now = round(clock.now + 40.0, 3)


def _layer(clock: Clock, step: int, layer: int) -> Iterator[Event]:
    server = clock.server
    yield clock.kernel(NORM, 2.5, 6144)
    if server.compact:
        yield clock.kernel(GATHER, 9.0, 132 * 8 * 512)
    elif server.fp8:
        yield from _casts(clock, step, layer)
    yield clock.kernel(ATTENTION[server.attention], server.attention_us + 0.1 * step, 132 * 512)
    yield clock.kernel(GEMM, server.gemm_us, 1 << 19)


def _casts(clock: Clock, step: int, layer: int) -> Iterator[Event]:
    server = clock.server
    external = 10_000 + step * server.layers + layer
    if server.shapes and not clock.graph:
        yield _copy_operator(clock, external)
    rows = server.rows // server.pieces
    for _ in range(server.pieces):
        noise = 1 + 0.004 * ((step * 7 + layer * 3) % 5 - 2)
        duration = round(server.cast_us / server.pieces * noise, 3)
        yield clock.kernel(server.cast_kernel, duration, rows * MLA_ROW, external)


def _copy_operator(clock: Clock, external: int) -> Event:
    dims = [clock.server.rows, 1, MLA_ROW]
    arguments = {
        "External id": external,
        "Record function id": 0,
        "Concrete Inputs": ["", "", "False"],
        "Input type": ["c10::BFloat16", "c10::Float8_e4m3fn", "Scalar"],
        "Input Strides": [[MLA_ROW, MLA_ROW, 1], [MLA_ROW, MLA_ROW, 1], []],
        "Input Dims": [dims, dims, []],
        "Ev Idx": external,
    }
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::copy_",
        "pid": 8798,
        "tid": 8798,
        "ts": clock.now - 20,
        "dur": 15.0,
        "args": arguments,
    }


def _span(server: Server, start: float, end: float) -> Event:
    return {
        "ph": "X",
        "cat": "gpu_user_annotation",
        "name": f"step[{server.mode} bs=4]",
        "pid": server.device,
        "tid": 7,
        "ts": start,
        "dur": round(end - start, 3),
        "args": {"External id": 1},
    }


def header() -> str:
    """What Kineto writes before the list of events, up to its opening bracket."""
    properties = json.dumps([DEVICE])
    return (
        f'{{\n  "schemaVersion": 1,\n  "deviceProperties": {properties},\n'
        '  "cupti_version": 26,\n  "cuda_runtime_version": 13000,\n  "host_name": "secret-host",\n'
        '  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1790857026000000000,\n'
        '  "traceEvents": [\n'
    )


def write(path: Path, server: Server) -> Path:
    """Write the trace of `server` to `path`, gzip where it ends in .gz."""
    body = ",\n  ".join(json.dumps(event, indent=2) for event in events(server))
    text = f'{header()}  {body}\n  ],"traceName": "/tmp/somewhere/private.json" }}\n'
    data = text.encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)
    return path


DATA = Path(__file__).parent / "data"
SHIPPED = {
    "synthetic-stock.json.gz": Server(gemm_us=327.0),
    "synthetic-compact.json.gz": Server(gemm_us=327.0, compact=True),
}


if __name__ == "__main__":
    for name, server in SHIPPED.items():
        write(DATA / name, server)

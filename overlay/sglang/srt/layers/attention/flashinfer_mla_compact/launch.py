"""Launch a Triton kernel without the look that Triton takes at every argument of every launch.

`kernel[grid](...)` finds out each time how the kernel is specialised, and an eager layer's time
can be the host's. What that first launch compiled is called by itself instead, as Triton's tutorial
on a fused softmax does.
"""

from __future__ import annotations

from typing import Any

import torch


class Launcher:
    """A kernel, compiled by an ordinary launch once for every kind of arguments.

    A kind is the device and all that Triton specialises on for NVIDIA's cards: of a tensor, its
    dtype and whether it starts at a multiple of 16 bytes; of anything else, its value, which is of
    one Python type at each place. A value that seldom comes twice is no argument for this.
    Launches go to the current stream, as ordinary ones do, and may be captured. Triton's launch
    hooks see all launches; a kernel's `pre_run_hooks`, and knobs that change what is compiled, only
    have a say in a kind's first.

    Where nothing is compiled (the interpreter), or a Triton wants a compiled kernel called in
    another way, every launch is an ordinary one.

    Args:
        kernel: a function under `triton.jit`.
        num_warps: of each launch.
    """

    def __init__(self, kernel: Any, num_warps: int) -> None:
        self._kernel = kernel
        self._num_warps = num_warps
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(self, programs: int, *arguments: Any) -> None:
        """Launch on a grid of [programs], on the device of the tensors, which must be current.

        Args:
            arguments: all of the kernel's, its constants among them, in its order; first a tensor.
        """
        kind = (arguments[0].get_device(), *[specialised(argument) for argument in arguments])
        compiled = self._compiled.get(kind)
        if compiled is not None:
            try:
                compiled[(programs, 1, 1)](*arguments)
                return
            except TypeError:  # raised before the launch, as arguments are unpacked
                self._compiled[kind] = None
        compiled = self._kernel[(programs,)](*arguments, num_warps=self._num_warps)
        self._compiled.setdefault(kind, compiled)


def specialised(argument: Any) -> Any:
    """What of an argument decides which compiled kernel takes it."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument

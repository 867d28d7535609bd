"""Stand-in for datasets, which sglang's benchmarks import and use for downloads alone."""

from typing import Any


def load_dataset(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("datasets is a stand-in here: it loads nothing")

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.bench.serving import TASK


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that passes for a model of `bench.model`."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": TASK.vocabulary}))
    (folder / "lookup.json").write_text(json.dumps(asdict(TASK)))
    return folder


@pytest.fixture
def drafted(model: Path) -> Path:
    """The same, with a folder that passes for its draft."""
    draft = model.with_name(f"{model.name}-draft")
    draft.mkdir()
    (draft / "config.json").touch()
    return model

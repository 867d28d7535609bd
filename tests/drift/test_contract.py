"""The contract: each predicate holds, flips on the change that it guards against, and names us."""

from __future__ import annotations

from pathlib import Path

import pytest
from overlaytool import contract

UPSTREAM = """
from .base import Base
from .ops import plan as plan_op

BACKENDS = ["flashinfer", "fa3"]
NAMES = frozenset({"FlashInferMLAAttnBackend"})

class Backend(Base):
    def __init__(self, runner, skip=False):
        self.pool = runner.pool

    def update(self, lens, lens_sum, wrapper, *, plan, **rest):
        wrapper.plan(lens, lens_sum, plan=plan, causal=False)

    def maps(self):
        table = {"flashinfer": self.one, "triton": self.two}
        return "flashinfer", table
"""
BASE = """
from abc import abstractmethod

class Base:
    @abstractmethod
    def start(self, batch): ...

    def stop(self, batch, hard=False): ...
"""
TREE = {
    "up/backend.py": UPSTREAM,
    "up/base.py": BASE,
    "up/ops.py": "def plan(a, b): ...\ndef wide(a, b, c): ...",
}


def read_tree(path: str) -> bytes | None:
    return TREE[path].encode() if path in TREE else None


def judge(
    tree: dict[str, str], symbol: str, row: dict[str, list[str]], file: str = "up/backend.py"
) -> str:
    (predicate, wanted), *_ = row.items() or [("defined", [])]
    entry = contract.Entry(file, symbol, predicate, tuple(wanted), "x")
    [finding] = contract.check([entry], lambda path: tree[path].encode() if path in tree else None)
    return finding.verdict


@pytest.mark.parametrize(
    ("symbol", "row", "before", "after", "verdict"),
    [
        ("Backend.update", {}, "def update", "def refresh", "gone"),
        ("Backend.update", {"parameters": ["lens", "*", "wrapper"]}, "wrapper,", "w,", "changed"),
        ("Backend.update", {"parameters": ["lens"]}, "lens, lens_sum,", "n, lens,", "changed"),
        ("Backend.__init__", {"parameters": ["*", "skip"]}, "skip=", "no_prefill=", "changed"),
        ("Backend.stop", {"signature": ["(self, batch, hard=False)"]}, "(Base)", "", "gone"),
        ("plan_op", {"signature": ["(a, b)"]}, "import plan as", "import wide as", "changed"),
        ("Backend.__init__", {"assigns": ["pool"]}, "self.pool", "self.kv_pool", "changed"),
        ("BACKENDS", {"contains": ["flashinfer"]}, '["flashinfer", "fa3"]', '["fa3"]', "changed"),
        ("BACKENDS", {"contains": ["flashinfer"]}, "BACKENDS", "CHOICES", "gone"),
        ("NAMES", {"contains": ["FlashInferMLAAttnBackend"]}, "MLAAttn", "MlaAttn", "changed"),
        ("Backend.update", {"code": ["wrapper.plan(_, ..., causal=False)"]}, "causal", "mask",
         "changed"),
        ("Backend.update", {"code": ["wrapper.plan(_, _, ...)"]}, "wrapper.plan", "plan.run",
         "changed"),
        ("Backend.maps", {"code": ['{"flashinfer": self.one, ...: ...}']}, "self.one", "self.two",
         "changed"),
        ("Backend.update", {"calls": ["wrapper.plan(_, ...)"]}, "(lens, lens_sum, plan",
         "(lens, plan=1)\n        wrapper.plan(plan", "changed"),
        ("Backend.maps", {"code": ['return "flashinfer", _']}, 'return "flashinfer",', "return",
         "changed"),
        ("Backend.stop", {"parameters": ["batch"]}, "(Base)", "", "gone"),
        ("Backend", {"bases": ["Base"]}, "(Base)", "(Other)", "changed"),
        ("plan_op", {"parameters": ["a", "b"]}, "import plan as", "import other as", "gone"),
    ],
)  # fmt: skip
def test_an_entry_holds_until_its_symbol_changes(
    symbol: str, row: dict[str, list[str]], before: str, after: str, verdict: str
) -> None:
    assert judge(TREE, symbol, row) == "held"
    assert before in UPSTREAM
    changed = TREE | {"up/backend.py": UPSTREAM.replace(before, after)}
    assert judge(changed, symbol, row) == verdict


def test_a_symbol_may_be_bound_under_a_condition() -> None:
    source = "if x:\n    def f(a): ...\ntry:\n    from m import g\nexcept E:\n    g = None\n"
    tree = {"up/backend.py": source}
    assert judge(tree, "f", {"parameters": ["a"]}) == "held"
    assert judge(tree, "g", {}) == "held"
    assert judge(tree, "h", {}) == "gone"


def test_a_new_abstract_method_breaks_the_contract_and_a_concrete_one_does_not() -> None:
    row = {"abstract": ["start"]}
    concrete = BASE + "\n    def more(self): ...\n"
    abstract = BASE + "\n    @abstractmethod\n    def more(self): ...\n"
    assert judge(TREE | {"up/base.py": concrete}, "Base", row, "up/base.py") == "held"
    assert judge(TREE | {"up/base.py": abstract}, "Base", row, "up/base.py") == "changed"


def test_a_file_that_is_gone_or_does_not_parse_is_never_held() -> None:
    assert judge({}, "Backend", {}) == "gone"
    assert judge({"up/backend.py": "def ("}, "Backend", {}) == "unread"


def test_a_finding_shows_the_pinned_signature_and_the_new_one() -> None:
    entry = contract.Entry("up/ops.py", "plan", "parameters", ("a", "b"), "x")
    [finding] = contract.check([entry], lambda _: b"def plan(a, c=1): ...", read_tree)
    assert (finding.verdict, finding.old, finding.new) == ("changed", "(a, b)", "(a, c=1)")


def test_needed_by_becomes_the_line_of_the_overlay(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text("import x\n\n    def update(self):\n")
    line = contract.needing_line([tmp_path], "rows.py: def update(")
    assert line == "rows.py:3 def update(self):"
    with pytest.raises(contract.ContractError, match="0 lines match"):
        contract.needing_line([tmp_path], "rows.py: def refresh(")


@pytest.mark.parametrize(
    "text",
    [
        "[[entry]]\nfile = 'a'\nsymbol = 'b'\n",
        "[[entry]]\nfile = 'a'\nsymbol = 'b'\nneeded_by = 'c'\nparameter = ['x']\n",
        "[[entry]]\nfile = 'a'\nsymbol = 'b'\nneeded_by = 'c'\ncode = ['x']\nbases = ['y']\n",
        "[[entry]]\nfile = 'a'\nsymbol = 'b'\nneeded_by = 'c'\ncode = 'x'\n",
        "[[entry",
    ],
)
def test_a_contract_that_is_not_well_formed_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "contract.toml"
    path.write_text(text)
    with pytest.raises(contract.ContractError):
        contract.load(path)

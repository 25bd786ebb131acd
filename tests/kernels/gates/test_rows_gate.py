"""The gate ``rows`` passes where rows are invariant, and names what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import msgspec
import pytest
import torch

from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.executor import DenseExecutor
from txdecode.kernels.gates import RowsCheck, RowsReport, rows_gate
from txdecode.kernels.gates.driver import Driver
from txdecode.kernels.gates.tally import Tally
from txdecode.kernels.models.errors import ModelNotInstalled
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import DenseWeights, load_weights
from txdecode.transactions.executor import AuditEntry, CapabilityMissing, Description

MakeWeights = Callable[..., DenseWeights]
Forward = Callable[[Sequence[Segment], bool], torch.Tensor | None]


def executor(make_weights: MakeWeights, dtype: Any = "bf16", **arguments: Any) -> DenseExecutor:
    settings = {"page_count": 24, "batch_max": 3, "rows_max": 6, "context": 140} | arguments
    return DenseExecutor(make_weights(), dtype=dtype, **settings)


def by_name(report: RowsReport) -> dict[str, RowsCheck]:
    return {check.name: check for check in report.checks}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_passes_on_an_invariant_model(dtype: str, make_weights: MakeWeights) -> None:
    told: list[tuple[int, int, str]] = []
    report = rows_gate(
        executor(make_weights, dtype), progress=lambda done, total, name: told.append((done, total, name))
    )
    assert report.passed
    assert report.contexts == (0, 1, 50, 63, 64, 120, 127, 128)
    checks = by_name(report)
    assert set(checks) == {
        "widths",
        "prefill tiles",
        "batch mates",
        "recomputation",
        "state",
    }
    for check in checks.values():
        assert check.rows > 0
        assert (check.mismatches, check.max_abs_diff, check.argmax_agreement) == (0, 0.0, 1.0)
    assert checks["widths"].rows == 8 * (2 + 3 + 4 + 5 + 6)
    assert told[-1] == (len(told) - 1, len(told) - 1, "done")
    assert msgspec.json.decode(msgspec.json.encode(report))["forwards"] == report.forwards


def test_full_looks_at_more(make_weights: MakeWeights) -> None:
    quick = rows_gate(executor(make_weights, rows_max=2, batch_max=2))
    full = rows_gate(executor(make_weights, rows_max=2, batch_max=2), full=True)
    assert full.passed
    assert set(full.contexts) > set(quick.contexts)
    assert by_name(full)["recomputation"].rows > by_name(quick)["recomputation"].rows


def broken(made: DenseExecutor, change: Callable[[Forward], Forward]) -> DenseExecutor:
    """The executor with its forward pass wrapped."""
    model: Any = made.model
    model.forward = change(model.forward)
    return made


def test_finds_logits_that_depend_on_how_many_rows_are_computed(make_weights: MakeWeights) -> None:
    """As with a plain matrix product, which picks its kernel by row count."""

    def change(forward: Forward) -> Forward:
        def run(segments: Sequence[Segment], logits: bool) -> torch.Tensor | None:
            found = forward(segments, logits)
            rows = sum(len(segment.tokens) for segment in segments)
            return found if found is None or rows < 5 else found * 1.01

        return run

    report = rows_gate(broken(executor(make_weights), change))
    assert not report.passed
    widths = by_name(report)["widths"]
    assert widths.mismatches == 8 * (5 + 6)
    assert widths.max_abs_diff > 0
    assert widths.argmax_agreement == 1.0
    assert widths.where[0].startswith("context 0, width 5, row 0: largest difference ")
    assert by_name(report)["state"].mismatches == 0


def test_finds_a_choice_that_depends_on_longer_mates(make_weights: MakeWeights) -> None:
    def change(forward: Forward) -> Forward:
        def run(segments: Sequence[Segment], logits: bool) -> torch.Tensor | None:
            found = forward(segments, logits)
            if found is not None and segments[0].position < segments[-1].position:
                found[0] = -found[0]
            return found

        return run

    checks = by_name(rows_gate(broken(executor(make_weights), change)))
    assert checks["batch mates"].mismatches > 0
    assert checks["batch mates"].argmax_agreement < 1
    assert "in a batch of 2, row 0" in checks["batch mates"].where[0]
    assert "other argmax" in checks["batch mates"].where[0]
    assert checks["widths"].mismatches == 0


def test_finds_keys_that_depend_on_the_tile(make_weights: MakeWeights) -> None:
    made = executor(make_weights, "fp32")

    def change(forward: Forward) -> Forward:
        def run(segments: Sequence[Segment], logits: bool) -> torch.Tensor | None:
            found = forward(segments, logits)
            if not logits and len(segments[0].tokens) == 31:
                page = made.model.cache.page_rows(1, segments[0].pages[0], 1)
                page[0, 0, 0] += 1
            return found

        return run

    checks = by_name(rows_gate(broken(made, change)))
    assert checks["state"].mismatches == 2
    assert checks["state"].where == (
        "context 128 after tiles of 31: kv layer 1 page 0",
        "context 128 and 6 rows after tiles of 31: kv layer 1 page 0",
    )
    assert checks["prefill tiles"].mismatches > 0
    assert checks["recomputation"].mismatches == 0


def test_finds_rows_that_depend_on_where_pages_lie(make_weights: MakeWeights) -> None:
    made = executor(make_weights)
    model: Any = made.model
    rows = model._rows

    def swapped(segments: Sequence[Segment], threads: int) -> Any:
        launch = rows(segments, threads)
        pages = launch.pages
        if len(pages) > 1 and pages[1] != pages[0] + 1:
            pages[:2] = pages[1::-1].copy()
        return launch

    model._rows = swapped
    checks = by_name(rows_gate(made))
    assert checks["recomputation"].mismatches > 0
    assert checks["widths"].mismatches == 0


def test_leaves_the_executor_usable_and_its_pages_free(make_weights: MakeWeights) -> None:
    made = executor(make_weights)
    assert rows_gate(made).passed
    assert rows_gate(made).passed


def test_executors_that_are_fused_or_without_logits_are_refused(make_weights: MakeWeights) -> None:
    class Fused(DenseExecutor):
        def describe(self) -> Description:
            plain = super().describe()
            return attrs.evolve(plain, capabilities=attrs.evolve(plain.capabilities, fused=True))

    with pytest.raises(CapabilityMissing, match="launches fused"):
        rows_gate(Fused(make_weights(), dtype="fp32", page_count=4))

    class Silent(DenseExecutor):
        logits_of_last_launch = None  # type: ignore[assignment]

    with pytest.raises(CapabilityMissing, match="does not show"):
        rows_gate(Silent(make_weights(), dtype="fp32", page_count=4))


def test_what_was_not_looked_at_has_not_passed(make_weights: MakeWeights) -> None:
    report = rows_gate(executor(make_weights, batch_max=1))
    assert by_name(report)["batch mates"].rows == 0
    assert all(check.mismatches == 0 for check in report.checks)
    assert not report.passed


def test_tally_tells_zeros_of_either_sign_apart() -> None:
    tally = Tally("zeros")
    tally.logits(torch.tensor([[0.0, 1.0]]), torch.tensor([[-0.0, 1.0]]), "here")
    assert tally.check().mismatches == 1


def test_tally_counts_differences_of_every_kind() -> None:
    tally = Tally("t")
    expected = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    found = torch.tensor([[1.0, 2.0], [3.0, 0.5], [float("nan"), 1.0]])
    tally.logits(expected, found, "here")
    tally.digests([AuditEntry("kv", 0, 0, 1)], [AuditEntry("kv", 0, 0, 2)], "there")
    check = tally.check()
    assert (check.rows, check.mismatches) == (4, 3)
    assert check.max_abs_diff == float("inf")
    assert check.argmax_agreement == pytest.approx(2 / 3)
    assert check.where[0] == "here, row 1: largest difference 0.5, same argmax"
    assert check.where[2] == "there: kv layer 0 page 0"


def test_tally_names_only_the_first_places() -> None:
    tally = Tally("t")
    tally.logits(torch.zeros(20, 3), torch.ones(20, 3), "x")
    assert len(tally.check().where) == 8
    assert tally.check().mismatches == 20


@pytest.fixture(scope="module")
def smollm2() -> DenseExecutor:
    try:
        source = resolve("smollm2")
    except ModelNotInstalled as absent:
        pytest.skip(str(absent))
    weights = load_weights(source, "bf16")
    assert isinstance(weights, DenseWeights)
    return DenseExecutor(weights, dtype="bf16", page_count=30, context=800)


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.model
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("context", "threads"), [(60, 2), (704, 1)], indirect=["threads"])
def test_rows_of_smollm2_are_invariant(context: int, smollm2: DenseExecutor) -> None:
    """A short form of ``txdecode gate rows``: over a page border, and at length."""
    driver = Driver(smollm2)
    lane, mate = driver.open(context + 16), driver.open(200, scattered=True)
    driver.consume(lane, context, 256)
    driver.consume(mate, 150, 100)
    expected = torch.cat([driver.advance([lane], [1])[0] for _ in range(6)])
    # Keys are positional: the lane may go back.
    lane.length = context
    for width in (2, 5, 8, 16):
        found = driver.rows([lane], [width])[0]
        assert torch.equal(found[:6], expected[: len(found)]), width
    assert torch.equal(driver.rows([mate, lane], [16, 6])[1], expected)

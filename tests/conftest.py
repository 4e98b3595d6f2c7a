"""Every plan that any test makes is verified; without a GPU, Triton's kernels are interpreted; without greenlet, tests of code
that asks for the numbers of tensors are skipped. A test that leaves a recording or a mode behind fails, and only that test.
Random numbers are the same in every run, whichever tests ran before."""

import os
from collections.abc import Generator

import pytest
import torch

os.environ["WEFT_VERIFY"] = "1"
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    from weft.errors import TraceError
    from weft.lazy.fibers import greenlet

    try:
        return (yield)
    except TraceError as error:
        if greenlet is not None or "needs fibers: install greenlet" not in str(error):
            raise
        return pytest.skip("it asks for numbers, which needs greenlet")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    from leftovers import clear_away, left_behind

    found = left_behind()
    if found:
        clear_away()
        pytest.fail(f"left behind: {', '.join(found)}")


@pytest.fixture
def one_thread() -> Generator[None, None, None]:
    """Sweeps are walks, whatever the number of rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

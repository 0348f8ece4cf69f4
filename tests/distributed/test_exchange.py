import queue
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupdro.distributed import CommunicationError, SerialCommunicator
from groupdro.distributed.exchange import PeerCommunicator
from tests.pairs import every_pair
from tests.timing import HUNG

WORKERS = range(1, 10)
LENGTHS = (0, 1, 2, 7, 1000, 29_999, 100_003)


class ThreadCommunicator(PeerCommunicator):
    """Threads of one process, connected by queues; notes its messages."""

    def __init__(self, rank, queues):
        super().__init__(rank, len(queues))
        self.queues = queues
        self.messages = []  # of (peer, numbers sent or None, numbers received or None)

    def _transfer(self, peer, sent, received):
        assert peer != self.rank
        assert 0 <= peer < self.size
        self.messages.append((peer, None if sent is None else sent.size, None if received is None else received.size))
        if sent is not None:
            self.queues[peer][self.rank].put(sent.copy())
        if received is not None:
            try:
                message = self.queues[self.rank][peer].get(timeout=HUNG)
            except queue.Empty:
                raise RuntimeError(f"no answer from rank {peer}") from None
            assert (message.size, message.dtype) == (received.size, received.dtype)
            received[:] = message


def together(workers, work, limit=None):
    """Return work(communicator) of every rank, and the communicators, after checking that no message is left over."""
    queues = [[queue.SimpleQueue() for _ in range(workers)] for _ in range(workers)]
    communicators = [ThreadCommunicator(rank, queues) for rank in range(workers)]
    results = [None] * workers

    def run(rank):
        try:
            results[rank] = work(communicators[rank])
        except BaseException as error:
            results[rank] = error

    for communicator in communicators:
        communicator.doubling_limit = communicator.doubling_limit if limit is None else limit
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    assert all(line.empty() for row in queues for line in row)
    return results, communicators


def integers(rank, n, dtype=np.float64):
    return np.random.default_rng([rank, n]).integers(-1000, 1000, n).astype(dtype)


def floats(rank, n):
    rng = np.random.default_rng([rank, n])
    return rng.normal(size=n) * 10.0 ** rng.integers(-12, 12, n)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("n", LENGTHS)
def test_sums_and_maxima_of_whole_numbers_are_exact(workers, n):
    def work(communicator):
        summed, largest = integers(communicator.rank, n), integers(communicator.rank, n)
        assert communicator.allreduce(summed) is summed
        assert communicator.allreduce_max(largest) is largest
        return summed, largest

    inputs = [integers(rank, n) for rank in range(workers)]
    for summed, largest in together(workers, work)[0]:
        np.testing.assert_array_equal(summed, np.sum(inputs, axis=0))
        np.testing.assert_array_equal(largest, np.max(inputs, axis=0))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("n", LENGTHS)
def test_every_rank_ends_with_the_same_bits_in_every_run(workers, n):
    def work(communicator):
        return communicator.allreduce(floats(communicator.rank, n)).tobytes()

    first, second = together(workers, work)[0], together(workers, work)[0]
    assert len({*first, *second}) == 1
    inputs = np.array([floats(rank, n) for rank in range(workers)])
    error = np.abs(np.frombuffer(first[0]) - inputs.sum(axis=0))
    assert np.all(error <= 1e-15 * workers * np.abs(inputs).sum(axis=0))


@settings(max_examples=60)
@given(
    workers=st.integers(1, 9),
    n=st.integers(0, 300),
    limit=st.sampled_from([0, 40, 10**9]),
    dtype=st.sampled_from([np.float64, np.int64]),
    root=st.integers(0, 8),
)
def test_any_length_any_number_of_workers_and_either_algorithm(workers, n, limit, dtype, root):
    root %= workers

    def work(communicator):
        own = integers(communicator.rank, n, dtype)
        return (
            communicator.allreduce(own.copy()),
            communicator.allreduce_max(own.copy()),
            communicator.broadcast(own.copy(), root),
        )

    inputs = [integers(rank, n, dtype) for rank in range(workers)]
    for summed, largest, copied in together(workers, work, limit)[0]:
        assert summed.dtype == largest.dtype == copied.dtype == dtype
        np.testing.assert_array_equal(summed, np.sum(inputs, axis=0))
        np.testing.assert_array_equal(largest, np.max(inputs, axis=0))
        np.testing.assert_array_equal(copied, inputs[root])


SPECIAL = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.0])


@every_pair(limit=[0, 10**9], n=[1, 2, 100], workers=[2, 3, 7])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_nan_infinities_and_signed_zeros_travel_with_the_same_bits(workers, n, limit):
    def inputs(rank, seed):
        return np.random.default_rng([rank, seed]).choice(SPECIAL, n)

    def work(communicator, seed):
        rank = communicator.rank
        return communicator.allreduce(inputs(rank, seed)), communicator.allreduce_max(inputs(rank, seed))

    for seed in range(20 if n == 1 else 3):
        results, _ = together(workers, lambda communicator, seed=seed: work(communicator, seed), limit)
        assert len({summed.tobytes() + largest.tobytes() for summed, largest in results}) == 1
        given = np.array([inputs(rank, seed) for rank in range(workers)])
        np.testing.assert_array_equal(results[0][0], given.sum(axis=0))
        np.testing.assert_array_equal(results[0][1], given.max(axis=0))


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_doubling_takes_log2_rounds_of_everything(workers):
    n, rounds = 1000, workers.bit_length() - 1
    for communicator in together(workers, lambda c: c.allreduce(np.ones(n)))[1]:
        assert communicator.messages == [(communicator.rank ^ (1 << k), n, n) for k in range(rounds)]
        assert communicator.bytes_sent == rounds * n * 8


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_halving_and_doubling_take_twice_the_rounds_and_send_everything_twice_at_most(workers):
    n, rounds = 2**16, workers.bit_length() - 1
    for communicator in together(workers, lambda c: c.allreduce(np.ones(n)))[1]:
        sizes = [n >> (k + 1) for k in range(rounds)]
        assert [sent for _, sent, _ in communicator.messages] == sizes + sizes[::-1]
        assert communicator.bytes_sent == 2 * (n - n // workers) * 8


@pytest.mark.parametrize("workers", [3, 5, 6, 7, 9])
@pytest.mark.parametrize("n", [1000, 50_000])
def test_the_fold_adds_one_message_before_and_one_after(workers, n):
    core = 1 << (workers.bit_length() - 1)
    rounds = (core.bit_length() - 1) * (1 if n <= ThreadCommunicator.doubling_limit else 2)
    for communicator in together(workers, lambda c: c.allreduce(np.ones(n)))[1]:
        rank = communicator.rank
        if rank >= core:
            assert communicator.messages == [(rank - core, n, None), (rank - core, None, n)]
        elif rank + core < workers:
            assert communicator.messages[0] == (rank + core, None, n)
            assert communicator.messages[-1] == (rank + core, n, None)
            assert len(communicator.messages) == rounds + 2
        else:
            assert len(communicator.messages) == rounds


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("n", [1, 50_000])
def test_a_broadcast_comes_from_any_root_down_a_tree(workers, n):
    for root in range(workers):
        results, communicators = together(workers, lambda c, root=root: c.broadcast(floats(c.rank, n), root))
        assert {copied.tobytes() for copied in results} == {floats(root, n).tobytes()}
        received = [[peer for peer, sent, _ in c.messages if sent is None] for c in communicators]
        assert [len(peers) for peers in received] == [int(rank != root) for rank in range(workers)]
        assert max(len(c.messages) for c in communicators) <= (workers - 1).bit_length()


def test_arrays_of_any_shape_are_changed_in_place():
    def work(communicator):
        cube, number = np.full((2, 3, 4), communicator.rank + 1.0), np.array(communicator.rank)
        communicator.allreduce(cube)
        communicator.allreduce_max(number)
        return cube, int(number)

    for cube, number in together(3, work)[0]:
        np.testing.assert_array_equal(cube, np.full((2, 3, 4), 6.0))
        assert number == 2


def test_nobody_passes_a_barrier_before_everyone_came():
    came = []

    def work(communicator):
        if communicator.rank == 4:
            while len(came) < 4:
                time.sleep(0.01)
            time.sleep(0.5)
        came.append(communicator.rank)
        communicator.barrier()
        return len(came)

    results, communicators = together(5, work)
    assert results == [5] * 5
    assert communicators[0].seconds > 0.1  # it waited for the last


def test_operations_are_counted():
    def work(communicator):
        communicator.allreduce(np.ones(10))
        communicator.allreduce(np.ones(0))
        communicator.broadcast(np.ones(3))
        communicator.barrier()

    first, second = together(2, work)[1]
    assert first.calls == second.calls == 4
    assert (first.bytes_sent, second.bytes_sent) == (8 * (10 + 3 + 1), 8 * (10 + 1))
    assert first.seconds > 0


def test_a_failure_names_the_rank_and_the_operation_and_ends_the_use():
    class Broken(ThreadCommunicator):
        def _transfer(self, peer, sent, received):
            raise RuntimeError(f"no answer from rank {peer}")

    communicator = Broken(1, [[], [], []])
    with pytest.raises(CommunicationError, match=r"Rank 1 of 3: allreduce_max of 5 float64 failed: no answer .* 0"):
        communicator.allreduce_max(np.zeros(5))
    with pytest.raises(CommunicationError, match="barrier is not possible: an earlier operation failed"):
        communicator.barrier()


@pytest.mark.parametrize(
    ("array", "error", "match"),
    [
        ([1.0], TypeError, "float64 or int64; got list"),
        (np.ones(2, np.float32), TypeError, "got an array of float32"),
        (np.ones(2, ">f8"), TypeError, "got an array of >f8"),
        (np.ones((4, 4)).T[1:], ValueError, "C-contiguous"),
        (np.broadcast_to(1.0, 3), ValueError, "writeable"),
    ],
)
def test_arrays_that_cannot_be_sent_as_they_are_are_refused(array, error, match):
    with pytest.raises(error, match=match):
        SerialCommunicator().allreduce(array)


def test_one_process_alone_changes_nothing():
    with SerialCommunicator() as communicator:
        array = np.arange(3.0)
        for result in (communicator.allreduce(array), communicator.allreduce_max(array), communicator.broadcast(array)):
            assert result is array
        communicator.barrier()
        np.testing.assert_array_equal(array, [0.0, 1.0, 2.0])
        assert (communicator.rank, communicator.size) == (0, 1)
        assert (communicator.calls, communicator.bytes_sent) == (4, 0)
        with pytest.raises(ValueError, match="root must be a rank from 0 to 0; got 1"):
            communicator.broadcast(array, root=1)
    communicator.close()
    with pytest.raises(CommunicationError, match="is closed"):
        communicator.allreduce(array)

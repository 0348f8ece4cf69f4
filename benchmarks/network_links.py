"""Networks of namespaces for `benchmarks.network`, and the relay that delays their frames.

python -m benchmarks.network_links DELAY TAP...     the relay, for file descriptors of TAP devices that it inherits
"""

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator

from benchmarks.network_model import BURST, MTU

__all__ = ["LIMIT", "enter", "network"]

LIMIT = 240.0  # seconds for a network to do its work

# Of the kernel's interface to TAP devices, linux/if_tun.h.
_SET_DEVICE, _SET_OFFLOAD = 0x400454CA, 0x400454D0
_TAP_WITH_OFFLOAD_HEADER = 0x0002 | 0x1000 | 0x4000
_CHECKSUMS_AND_SEGMENTS = 0x01 | 0x02
_OFFLOAD_HEADER = 10  # bytes before each frame
_NETWORK_NAMESPACE = 0x40000000  # of linux/sched.h


def run(*command: object) -> None:
    """Run a command that must succeed."""
    subprocess.run([str(word) for word in command], check=True, timeout=30, capture_output=True, text=True)


def open_tap(name: str) -> int:
    """Make a TAP device, which lives as long as the file descriptor."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _SET_DEVICE, struct.pack("16sH22x", name.encode(), _TAP_WITH_OFFLOAD_HEADER))
    fcntl.ioctl(tap, _SET_OFFLOAD, _CHECKSUMS_AND_SEGMENTS)  # 64 kB per read, as veth pairs pass them on
    return tap


def forward(delay: float, taps: list[int]) -> None:
    """Forward every frame after the delay, until the parent ends."""
    # As a wire would, the relay takes precedence over whatever computes.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    waiting: deque[tuple[float, int, memoryview, int]] = deque()
    rooms: list[memoryview] = []  # kept, because new memory costs more than the copies
    parent, end = os.getppid(), time.monotonic() + LIMIT + 60.0
    while os.getppid() == parent and (now := time.monotonic()) < end:
        ready = select.select(taps, [], [], max(0.0, waiting[0][0] - now) if waiting else 1.0)[0]
        for tap in ready:
            for _ in range(8):
                room = rooms.pop() if rooms else memoryview(bytearray(2**17))
                try:
                    size = os.readv(tap, [room])
                except BlockingIOError:
                    rooms.append(room)
                    break
                waiting.append((time.monotonic() + delay, tap, room, size))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, source, room, size = waiting.popleft()
            to_all, number = room[_OFFLOAD_HEADER] & 1, room[_OFFLOAD_HEADER + 5]
            for tap in [tap for tap in taps if tap != source] if to_all else [taps[number - 1]]:
                with contextlib.suppress(OSError):  # a device that is down loses frames
                    os.write(tap, room[:size])
            rooms.append(room)


@contextlib.contextmanager
def network(n_workers: int, rate: float | None, delay: float) -> Iterator[list[str]]:
    """Make namespaces and their network, give their names, and remove all of it."""
    spaces = [f"gdnet{os.getpid()}-{k}" for k in range(n_workers)]
    hub = f"gdnet{os.getpid()}-hub"
    taps: list[int] = []
    relay = None
    try:
        for space in [hub, *spaces]:
            run("ip", "netns", "add", space)
            run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        for k, space in enumerate(spaces):
            if delay:
                taps.append(open_tap(name := f"gdnet{os.getpid()}t{k}"))
                run("ip", "link", "set", name, "netns", space, "name", "eth0")
            else:
                run("ip", "-n", hub, "link", "add", f"to{k}", "type", "veth", "peer", "name", "eth0", "netns", space)
                run("ip", "-n", hub, "link", "set", f"to{k}", "mtu", MTU, "master", "bridge", "up")
            set_up(space, k + 1, rate)
        if delay:
            command = [sys.executable, "-m", "benchmarks.network_links", str(delay), *map(str, taps)]
            relay = subprocess.Popen(command, pass_fds=taps)
        yield spaces
    finally:
        if relay is not None:
            relay.kill()
            relay.wait(timeout=30)
        for tap in taps:
            os.close(tap)
        for space in [hub, *spaces]:
            subprocess.run(["ip", "netns", "del", space], check=False, timeout=30, capture_output=True)


def enter(space: str) -> None:
    """Move this process into a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{space}") as file:
        if libc.setns(file.fileno(), _NETWORK_NAMESPACE):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {space}")


def set_up(space: str, number: int, rate: float | None) -> None:
    """Give a namespace's device its address, its rate, and buffers for long messages over delays."""
    device = ("ip", "-n", space, "link", "set", "eth0")
    run(*device, "address", f"02:00:00:00:00:{number:02x}", "mtu", MTU, "txqueuelen", 10_000)
    run("ip", "-n", space, "address", "add", f"10.99.0.{number}/24", "dev", "eth0")
    settings = ("net.ipv6.conf.all.disable_ipv6=1", "net.ipv4.tcp_slow_start_after_idle=0")
    buffers = ("net.ipv4.tcp_rmem=4096 8388608 33554432", "net.ipv4.tcp_wmem=4096 8388608 33554432")
    run("ip", "netns", "exec", space, "sysctl", "-q", "-w", *settings, *buffers)
    run(*device, "up")
    # Windows that hold a long message from the start: the model has no term for their growth.
    windows = ("initcwnd", 400, "initrwnd", 400)
    run("ip", "-n", space, "route", "replace", "10.99.0.0/24", "dev", "eth0", "src", f"10.99.0.{number}", *windows)
    if rate:
        limits = ("rate", f"{rate:.0f}bit", "burst", BURST, "limit", 2**25)
        run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", "tbf", *limits)


if __name__ == "__main__":
    forward(float(sys.argv[1]), [int(tap) for tap in sys.argv[2:]])

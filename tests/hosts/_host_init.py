"""The first process of a host: ``_host_init.py NAME NUMBER ADDRESS MTU FOLDER SOCKET``, in namespaces of its own.

It gives the host its name and its network device, hands the other end of that device to the bench over SOCKET, and waits until the
bench closes its standard input or dies. With this process the kernel ends all other processes of the host.
"""

import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
DEVICE = "eth0"


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=20)


def make_device() -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def main() -> None:
    name, number, address, mtu, folder, descriptor = sys.argv[1:]
    socket.sethostname(name)
    for file in ("hosts", "nsswitch.conf", "resolv.conf"):
        place = Path("/etc", file).resolve()
        if place.exists():
            run("mount", "--bind", f"{folder}/{file}", str(place))
    with contextlib.suppress(OSError):  # a kernel without IPv6
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
    tap = make_device()
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "set", DEVICE, "address", f"02:00:00:00:00:{int(number):02x}", "mtu", mtu)
    run("ip", "address", "add", f"{address}/24", "dev", DEVICE)
    run("ip", "link", "set", DEVICE, "up")
    with socket.socket(fileno=int(descriptor)) as bench:
        socket.send_fds(bench, [b"ready"], [tap])
    os.close(tap)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans come here, and vanish
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()

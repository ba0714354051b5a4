"""Somebody on another host who is no worker writes to a job's coordination service.

Arguments: ``_stranger.py ADDRESS KEY TEXT [KEY TEXT ...]``.
"""

import re
import struct
import sys

import grpc

SERVICE = "/xla.coordination.CoordinationService/"
OVERWRITE = b"\x18\x01"


def field(number: int, value: bytes) -> bytes:
    """A field of bytes in a message of Protocol Buffers."""
    size, rest = bytearray(), len(value)
    while rest >= 128:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes([number * 8 + 2, *size, rest]) + value


def main() -> None:
    address, *words = sys.argv[1:]
    with grpc.insecure_channel(address) as channel:
        listed = channel.unary_unary(f"{SERVICE}GetKeyValueDir")
        folder = field(2, b"replicant/0/")
        me = b""
        try:
            listed(folder, timeout=20, wait_for_ready=True)
        except grpc.RpcError as error:  # the service itself says what it wants to hear
            service = next(re.finditer(r"currently (\d+)", str(error)))
            me = field(1, b"\x19" + struct.pack("<Q", int(service[1])))
        for key, text in zip(words[::2], words[1::2], strict=True):
            entry = field(2, field(1, key.encode()) + field(2, text.encode()))
            channel.unary_unary(f"{SERVICE}InsertKeyValue")(me + entry + OVERWRITE, timeout=20)
        print("reads", b"replicant/0/beat/0" in listed(me + folder, timeout=20))


if __name__ == "__main__":
    main()

"""A rank that reports its process id to a port on loopback and then waits to be ended."""

from __future__ import annotations

import os
import signal
import socket
import sys

if __name__ == "__main__":
    if "ignore" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        connection.sendall(f"{os.getpid()}\n".encode())
        connection.recv(1)

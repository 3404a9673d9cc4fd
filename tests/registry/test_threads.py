"""Declaring in one thread while another looks keys up."""

import threading
from concurrent.futures import ThreadPoolExecutor

from distmetrics.registry import Registry


def test_a_look_up_beside_declarations_is_never_stale_afterwards() -> None:
    """What a thread found earlier does not outlive a declaration made meanwhile."""
    registry = Registry()
    keys = [f"key{i}" for i in range(300)]
    stop = threading.Event()

    def look_up() -> int:
        rounds = 0
        while not stop.is_set():
            for key in keys:
                registry.resolve(key)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look_up)
        try:
            for key in keys:
                registry.count(key)
                assert registry[key].reduction.kind == "count"
        finally:
            stop.set()
        looking.result(timeout=30)
    assert all(registry[key].reduction.kind == "count" for key in keys)

"""The doctor: what it sees, and what it calls wrong."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner

from distmetrics.cli.doctor import doctor
from distmetrics.comm import address
from distmetrics.comm import doctor as doctoring
from distmetrics.comm.doctor import diagnose
from tests.comm.forks import by_hand, fork


def invoke(*arguments: str) -> tuple[int, str]:
    """Exit code and output of the command in this process."""
    result = CliRunner().invoke(doctor, arguments)
    return result.exit_code, result.output


def test_a_single_process_has_no_problem() -> None:
    """Launch, versions, devices and addresses are shown."""
    code, text = invoke()
    assert code == 0, text
    for part in ("launcher", "single", str(torch.__version__), "Gloo", "no problem found"):
        assert part in text


def test_sources_of_the_launch_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value with the variable it came from."""
    for name, value in by_hand(2, port=12345)[0].items():
        monkeypatch.setenv(name, value)
    code, text = invoke()
    assert code == 0, text
    assert "0  (RANK)" in text
    assert "127.0.0.1  (MASTER_ADDR)" in text
    assert "127.0.0.1:12345" in text


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "set MASTER_ADDR"),
        (
            {
                "RANK": "0",
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "no-such-host.invalid",
                "MASTER_PORT": "1",
            },
            "'no-such-host.invalid' (MASTER_ADDR) does not resolve",
        ),
        ({"GLOO_SOCKET_IFNAME": "nowhere0"}, "GLOO_SOCKET_IFNAME names nowhere0"),
        ({"SLURM_PROCID": "3", "SLURM_JOB_ID": "1"}, "SLURM_NTASKS"),
    ],
)
def test_what_is_wrong_is_said_in_words_with_code_1(
    environ: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with what to do about it."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    code, shown = invoke()
    assert code == 1
    assert text in shown
    assert "problem: " in shown
    assert "no problem found" not in shown


def test_the_variables_of_a_broken_launch_are_listed() -> None:
    """So that a report holds what is needed."""
    found = diagnose({"RANK": "1", "SLURM_JOB_ID": "9", "HOME": "/root", "WANDB_API_KEY": "x"})
    assert found.sections["variables of the launcher"] == [("RANK", "1"), ("SLURM_JOB_ID", "9")]


def test_a_shell_of_an_allocation_is_a_note_and_no_problem() -> None:
    """It works, as a single process."""
    found = diagnose({"SLURM_JOB_ID": "9", "SLURM_NTASKS": "4"})
    assert found.problems == []
    assert "SLURM_NTASKS=4" in found.notes[0]


def test_fewer_devices_than_ranks_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers."""
    monkeypatch.setattr(doctoring, "visible_devices", lambda: ("a", "b"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"device {index}")
    environ = {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}
    found = diagnose(environ)
    assert any("3 ranks on this node, but only 2" in problem for problem in found.problems)
    assert ("cuda:1", "device 1 b") in found.sections["devices"]


def test_a_build_without_gloo_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects and metrics travel over it."""
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    assert any("no Gloo" in problem for problem in diagnose({}).problems)


def test_a_cuda_build_without_devices_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training on the CPU may be meant."""
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    monkeypatch.setattr(doctoring, "visible_devices", lambda: ())
    found = diagnose({})
    assert any("sees no device" in note for note in found.notes)
    assert found.problems == []


def test_a_host_name_on_the_loopback_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several hosts it would keep Gloo from connecting."""
    monkeypatch.setattr(address, "_lookup", lambda _: ["127.0.1.1"])
    found = diagnose({})
    assert any("resolves to the loopback" in note for note in found.notes)
    assert found.sections["addresses"][0] == (
        "this host",
        f"{socket.gethostname()} -> the loopback",
    )


def run_doctor(*arguments: str) -> Any:
    """The command on one rank."""
    return invoke("--comm", "--timeout", "20", *arguments)


def test_the_ranks_of_a_launcher_are_connected_and_timed() -> None:
    """A table on rank 0, silence elsewhere, and nothing left behind."""

    def run() -> Any:
        return (*run_doctor(), dist.is_initialized())

    (code, text, left), (other, silence, _) = fork(run, by_hand(2))
    assert (code, other, left) == (0, 0, False), text
    table = text[text.index("connections") :].splitlines()
    assert table[1].split()[:3] == ["rank", "node", "host"]
    assert [line.split()[0] for line in table[2:4]] == ["0", "1"]
    assert [line.split()[-1] for line in table[2:4]] == ["ok", "ok"]
    assert silence == ""


def test_an_absent_rank_is_named_with_code_1() -> None:
    """On whoever came."""
    ((code, text),) = fork(lambda: invoke("--comm", "--timeout", "1"), by_hand(2)[:1])
    assert code == 1
    assert "problem: the ranks could not connect: setup_distributed: rank 1 of 2" in text


def test_a_group_that_does_not_add_up_is_a_problem_of_its_rank() -> None:
    """Each rank ends with code 1; rank 0 tells which are wrong."""

    def run() -> Any:
        from distmetrics.errors import PeerLostError

        def wrong(_group: object, _ranks: object, me: int) -> None:
            if me == 1:
                raise PeerLostError("sums are wrong")

        doctoring.try_group = wrong
        return run_doctor()

    (code, text), (other, _) = fork(run, by_hand(2))
    assert (code, other) == (1, 1)
    assert "problem: rank 1: sums are wrong" in text
    assert "wrong" in text[text.index("connections") :].splitlines()[3]


def test_a_single_process_has_nobody_to_connect_to() -> None:
    """A note, not a fault."""
    code, text = invoke("--comm")
    assert code == 0
    assert "nobody to talk to" in text

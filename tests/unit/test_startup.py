import socket
from pathlib import Path

import pytest

from perdure_server.startup import StartupError, check_port_free, write_port_file


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_in_use_is_refused_even_when_its_holder_would_share(shared: bool):
    with socket.socket() as holder:
        if shared:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]

        with pytest.raises(StartupError, match=f"port {port} .*--listen"):
            check_port_free("127.0.0.1", port)

    check_port_free("127.0.0.1", port)
    check_port_free("127.0.0.1", 0)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(StartupError, match="cannot listen on"):
        check_port_free("192.0.2.1", 0)


def test_the_port_file_appears_whole(tmp_path: Path):
    write_port_file(tmp_path / "port", "127.0.0.1:7401")

    assert (tmp_path / "port").read_text() == "127.0.0.1:7401\n"
    assert [path.name for path in tmp_path.iterdir()] == ["port"]


def test_a_port_file_in_a_missing_folder_is_refused(tmp_path: Path):
    with pytest.raises(StartupError, match="--port-file"):
        write_port_file(tmp_path / "none" / "port", "127.0.0.1:7401")


def test_a_startup_error_is_one_line():
    assert str(StartupError("first\n  second")) == "first second"

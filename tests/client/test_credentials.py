"""How a client finds server and key."""

import json
from pathlib import Path

import pytest

import perdure
from perdure.credentials import Credentials, find_credentials
from perdure.errors import Denied, Unavailable

KEY = "pd_default_k_" + "s" * 43


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERDURE_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("PERDURE_TARGET", raising=False)
    monkeypatch.delenv("PERDURE_KEY", raising=False)
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "credentials.json").write_text(text)


def test_without_a_server_connect_says_what_to_type() -> None:
    with pytest.raises(Unavailable, match="perdure serve") as caught:
        perdure.connect()

    assert caught.value.reason == "NOT_CONFIGURED"


def test_the_key_file_of_a_local_server_is_found(folder: Path) -> None:
    write(folder, json.dumps({"target": "127.0.0.1:7401", "key": KEY}))

    assert find_credentials(None, None) == Credentials("127.0.0.1:7401", KEY)


def test_the_environment_comes_before_the_key_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, json.dumps({"target": "127.0.0.1:7401", "key": KEY}))
    monkeypatch.setenv("PERDURE_TARGET", "db.example:7401")
    monkeypatch.setenv("PERDURE_KEY", "pd_other")

    assert find_credentials(None, None) == Credentials("db.example:7401", "pd_other")


def test_a_stored_key_is_never_sent_to_another_server(folder: Path) -> None:
    write(folder, json.dumps({"target": "127.0.0.1:7401", "key": KEY}))

    with pytest.raises(Denied, match=r"no key for db\.example:7401"):
        find_credentials("db.example:7401", None)


@pytest.mark.parametrize("text", ["", "{", "\x00"])
def test_a_broken_key_file_says_so(folder: Path, text: str) -> None:
    write(folder, text)

    with pytest.raises(Unavailable, match="cannot be read"):
        find_credentials(None, None)


@pytest.mark.parametrize("key", ["pd_a\n", "pd_ä", "pd_\x00"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(Denied, match="copied whole"):
        find_credentials("127.0.0.1:1", key)


def test_a_key_does_not_show_when_credentials_are_printed() -> None:
    assert KEY not in repr(Credentials("127.0.0.1:1", KEY))

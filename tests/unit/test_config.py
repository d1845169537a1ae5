from pathlib import Path

import pytest

from perdure_server.config import Address, Config, load_config


def test_a_bare_serve_has_the_documented_defaults():
    config = load_config(["serve"], {})

    assert str(config.listen) == "127.0.0.1:7401"
    assert config.dsn is None
    assert config.stream_idle_timeout_s == 30
    assert config.unary_timeout_s == 10
    assert config.shutdown_grace_s == 10
    assert config.transaction_timeout_s == 5
    assert config.idle_transaction_timeout_s == 1
    assert config == Config(data_dir=config.data_dir)


def test_a_flag_wins_over_the_environment_and_that_over_the_default():
    environ = {
        "PERDURE_LISTEN": "127.0.0.1:1",
        "PERDURE_SHUTDOWN_GRACE_S": "7",
        "PERDURE_POOLER": "true",
        "PERDURE_DSN": "postgresql://db/x",
    }

    config = load_config(["serve", "--listen", "[::1]:0", "--no-pooler"], environ)

    assert config.listen == Address("::1", 0)
    assert str(config.listen) == "[::1]:0"
    assert config.shutdown_grace_s == 7
    assert config.pooler is False
    assert config.dsn == "postgresql://db/x"


def test_the_data_folder_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)

    config = load_config(["serve", "--data-dir", "state"], {})

    assert config.data_dir == tmp_path / "state"


@pytest.mark.parametrize("action", ["up", "status", "sql"])
def test_db_commands_take_the_database_flags(action: str):
    config = load_config(["db", action, "--dsn", "postgres://db/x"], {})

    assert config.command == f"db {action}"
    assert config.dsn == "postgres://db/x"


@pytest.mark.parametrize(
    ("argv", "environ", "complaint"),
    [
        (["serve", "--listen", "7401"], {}, "--listen"),
        (["serve", "--listen", "h:70000"], {}, "--listen"),
        (["serve", "--listen", "h:٣"], {}, "--listen"),
        (["serve", "--dsn", "host=db"], {}, "--dsn"),
        (["serve", "--shutdown-grace-s", "0"], {}, "--shutdown-grace-s"),
        (["serve", "--shutdown-grace-s", "nan"], {}, "--shutdown-grace-s"),
        (["serve"], {"PERDURE_UNARY_TIMEOUT_S": "soon"}, "--unary-timeout-s"),
        (["serve", "--log-level", "loud"], {}, "--log-level"),
        (["serve", "--list", "h:1"], {}, "--list"),
        (["fly"], {}, "fly"),
        ([], {}, "command"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_flag(
    argv: list[str],
    environ: dict[str, str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
):
    with pytest.raises(SystemExit) as caught:
        load_config(argv, environ)

    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert complaint in lines[0]

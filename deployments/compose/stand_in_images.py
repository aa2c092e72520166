"""The two images that the Compose profile takes from a registry, made from Debian's packages instead.

``python:3.11-slim-bookworm`` is a debootstrap root with this very Python in /usr/local and the wheels of
requirements.lock beside it, so that the Dockerfile is built as it stands, without a network. ``postgres:16-alpine`` is
the same root with Debian's PostgreSQL and an entry point that does what compose.yaml needs of the official one.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
PYTHON, POSTGRES = "python:3.11-slim-bookworm", "postgres:16-alpine"
_PACKAGES = "ca-certificates,postgresql,libssl3,libffi8,libsqlite3-0,libbz2-1.0,libreadline8,libuuid1,libexpat1,zlib1g"
_LEFT_OUT = ["./var/cache/apt", "./var/lib/apt/lists", "./usr/share/doc", "./usr/share/man", "./usr/share/locale"]


def make_images(folder: Path, docker: list[str]) -> None:
    """Make both in a daemon, unless they are there from an earlier time; the root and the wheels are kept, too."""
    lock = CHECKOUT / "requirements.lock"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    asked = [*docker, "image", "inspect", "--format", "{{.Config.Labels.lock}}", PYTHON, POSTGRES]
    if subprocess.run(asked, capture_output=True, text=True).stdout.split() == [digest, digest]:
        return
    root, wheels = folder / "root", folder / f"wheels-{digest}"
    if not (root / "made").exists():
        shutil.rmtree(root, ignore_errors=True)
        _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root))
        _copy_python(root)
        (root / "made").touch()
    shutil.copy(HERE / "postgres-stand-in.sh", root / "usr" / "local" / "bin" / "docker-entrypoint.sh")
    if not (wheels / "made").exists():
        wheels.mkdir(exist_ok=True)
        further = ["psycopg[binary]", "psycopg2-binary", "asyncpg", "setuptools", "wheel"]
        _run(sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(wheels), "-r", str(lock), *further)
        (wheels / "made").touch()
    beside = root / "opt" / "wheels"
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(wheels, beside)
    (root / "etc" / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /opt/wheels\n")
    label = ["--change", f"LABEL lock={digest}"]
    _import(root, [*docker, "import", *label, "--change", 'CMD ["python"]', "-", PYTHON], _LEFT_OUT)
    start = ["--change", 'ENTRYPOINT ["sh", "/usr/local/bin/docker-entrypoint.sh"]']
    _import(root, [*docker, "import", *label, *start, "-", POSTGRES], [*_LEFT_OUT, "./opt", "./usr/local/lib"])


def _copy_python(root: Path) -> None:
    """Debian's own 3.11.2 is older than requirements.lock allows."""
    base, target = Path(sys.base_prefix), root / "usr" / "local"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    not_needed = shutil.ignore_patterns("site-packages", "test", "__pycache__", "idlelib", "tkinter")
    shutil.copytree(base / "lib" / version, target / "lib" / version, ignore=not_needed, dirs_exist_ok=True)
    for library in (base / "lib").glob(f"lib{version}*.so*"):
        shutil.copy(library, target / "lib", follow_symlinks=False)
    shutil.copy(base / "bin" / version, target / "bin" / version)
    for name in ("python", "python3"):
        (target / "bin" / name).symlink_to(version)
    _run("chroot", str(root), "ldconfig")
    _run("chroot", str(root), f"/usr/local/bin/{version}", "-m", "ensurepip", "--upgrade", "--default-pip")


def _import(root: Path, command: list[str], left_out: list[str]) -> None:
    packed = subprocess.Popen(
        ["tar", "-C", str(root), *(f"--exclude={path}" for path in left_out), "-c", "."], stdout=subprocess.PIPE
    )
    subprocess.run(command, stdin=packed.stdout, check=True)
    if packed.wait():
        raise SystemExit(f"tar of {root} failed")


def _run(*command: str) -> None:
    print("$", " ".join(command), flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

"""The running holdfast as a wheel for the agent's sake: the same files, and only what an agent needs.

Built from the files that we run, so that a host gets exactly our version, released or not, and no registry
has to know it. The version of the environment on the host is a digest of the contents: the same contents are
installed once.
"""

import base64
import functools
import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path

import msgspec

import holdfast

NEEDS = ("msgspec", "cryptography")  # what an agent imports
PINNED = (*NEEDS, "cffi", "pycparser")
LEFT_OUT = frozenset({"__pycache__", "cli", "api", "sim", "files", "control"})
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same contents give the same wheel


class Wheel(msgspec.Struct, frozen=True):
    name: str  # of the file
    version: str
    content: bytes
    constraints: str


@functools.cache
def wheel() -> Wheel:
    files = _files(Path(holdfast.__file__).parent)
    constraints = "".join(f"{name}=={version}\n" for name, version in _pins())
    digest = hashlib.sha256(constraints.encode())
    for path, text in files:
        digest.update(f"{path}\0{len(text)}\0".encode() + text)
    version = f"{holdfast.__version__}+{digest.hexdigest()[:12]}"
    name = f"holdfast-{version}"
    content = _zip([*files, *_facts(version, files)])
    return Wheel(f"{name}-py3-none-any.whl", version, content, constraints)


def _files(package: Path) -> list[tuple[str, bytes]]:
    found = []
    for path in sorted(package.rglob("*")):
        within = path.relative_to(package)
        if path.is_file() and not LEFT_OUT.intersection(within.parts):
            found.append((f"holdfast/{within.as_posix()}", path.read_bytes()))
    return found


def _pins() -> list[tuple[str, str]]:
    pins = []
    for name in PINNED:
        try:
            pins.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue  # not every version of what we need needs it
    return pins


def _facts(version: str, files: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    folder = f"holdfast-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: holdfast\nVersion: {version}\nRequires-Python: >=3.11\n"
    about += "".join(f"Requires-Dist: {name}\n" for name in NEEDS)
    kind = "Wheel-Version: 1.0\nGenerator: holdfast\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    facts = [(f"{folder}/METADATA", about.encode()), (f"{folder}/WHEEL", kind.encode())]
    record = [f"{path},{_digest(text)},{len(text)}\n" for path, text in [*files, *facts]]
    return [*facts, (f"{folder}/RECORD", ("".join(record) + f"{folder}/RECORD,,\n").encode())]


def _digest(text: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()


def _zip(files: list[tuple[str, bytes]]) -> bytes:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files:
            archive.writestr(zipfile.ZipInfo(path, LONG_AGO), text, zipfile.ZIP_DEFLATED)
    return into.getvalue()

"""Tar files of WebDataset, Python, GNU tar and bsdtar."""

import functools
import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _cells import Cell, rows

FORM = "Tar"
_LONG = "a" * 60 + "/" + "b" * 60 + "/" + "c" * 120
_FORMATS = {"ustar": tarfile.USTAR_FORMAT, "GNU": tarfile.GNU_FORMAT, "PAX": tarfile.PAX_FORMAT}


def cells() -> Iterator[Cell]:
    for what, name, settings in (
        ("TarWriter", "file.tar", {}),
        ("TarWriter, gzip", "file.tar.gz", {}),
        ("TarWriter, without its encoder", "file.tar", {"encoder": False}),
        ("TarWriter, keep_meta=True", "file.tar", {"keep_meta": True}),
    ):
        yield Cell(FORM, "webdataset", what, functools.partial(_webdataset, name, settings))
    yield Cell(FORM, "webdataset", "ShardWriter", _shards)
    yield Cell(FORM, "webdataset", "TarWriter, samples with other keys", _other_keys)
    for name, form in _FORMATS.items():
        yield Cell(FORM, "Python", f"tarfile, {name}", functools.partial(_python, form, "w"))
        if name != "ustar":
            yield Cell(FORM, "Python", f"tarfile, {name}, long names", functools.partial(_python, form, "w", long=True))
    yield Cell(FORM, "Python", "tarfile, gzip", functools.partial(_python, tarfile.PAX_FORMAT, "w:gz"))
    for each, words in (("bz2", "compressed by bzip2"), ("xz", "compressed by xz")):
        yield Cell(FORM, "Python", f"tarfile, {each}", functools.partial(_python, tarfile.PAX_FORMAT, f"w:{each}"), words)
    yield Cell(
        FORM,
        "Python",
        "tarfile, gzip, unsaid",
        functools.partial(_python, tarfile.PAX_FORMAT, "w:gz", said=False),
        'pass compression_type="GZIP"',
    )
    yield Cell(FORM, "Python", "tarfile, hard links", functools.partial(_link, tarfile.LNKTYPE), "as a hard link")
    yield Cell(FORM, "Python", "tarfile, symbolic links", functools.partial(_link, tarfile.SYMTYPE), "as a symbolic link")
    yield Cell(FORM, "Python", "tarfile, a sample in two places", _twice)
    for form in ("gnu", "oldgnu", "pax", "posix", "ustar", "v7"):
        yield Cell(FORM, "GNU tar", f"--format={form}", functools.partial(_program, ["tar", f"--format={form}"]), program="tar")
    for form in ("gnu", "pax"):
        yield Cell(
            FORM,
            "GNU tar",
            f"--format={form}, long names",
            functools.partial(_program, ["tar", f"--format={form}"], long=True),
            program="tar",
        )
    yield Cell(FORM, "GNU tar", "--gzip", functools.partial(_program, ["tar", "--gzip"]), program="tar")
    yield Cell(
        FORM,
        "GNU tar",
        "--sort=name --owner=0 --mtime=@0",
        functools.partial(_program, ["tar", "--sort=name", "--owner=0", "--mtime=@0"]),
        program="tar",
    )
    yield Cell(FORM, "GNU tar", "several --concatenate", _concatenated, program="tar")
    yield Cell(
        FORM,
        "GNU tar",
        "--sparse",
        functools.partial(_sparse, ["tar", "--sparse", "--format=gnu"]),
        "as a sparse file",
        program="tar",
    )
    yield Cell(
        FORM,
        "GNU tar",
        "--sparse --format=pax",
        functools.partial(_sparse, ["tar", "--sparse", "--format=pax"]),
        "as a sparse file",
        program="tar",
    )
    yield Cell(FORM, "GNU tar", "--zstd", functools.partial(_program, ["tar", "--zstd"]), "compressed by ZSTD", program="zstd")
    for form in ("ustar", "pax", "gnutar", "v7"):
        yield Cell(
            FORM, "bsdtar", f"--format={form}", functools.partial(_program, ["bsdtar", f"--format={form}"]), program="bsdtar"
        )
    for form in ("pax", "gnutar"):
        yield Cell(
            FORM,
            "bsdtar",
            f"--format={form}, long names",
            functools.partial(_program, ["bsdtar", f"--format={form}"], long=True),
            program="bsdtar",
        )
    yield Cell(FORM, "bsdtar", "-z", functools.partial(_program, ["bsdtar", "-z"]), program="bsdtar")
    for form in ("cpio", "zip"):
        yield Cell(
            FORM,
            "bsdtar",
            f"--format={form}",
            functools.partial(_program, ["bsdtar", f"--format={form}"]),
            "is damaged at byte 0",
            program="bsdtar",
        )


def _read(path: Any, gzip: bool = False) -> list[Any]:
    from replicant.data import TarDataset

    return rows(TarDataset(path, compression_type="GZIP" if gzip else None))


def _by_webdataset(paths: list[Path]) -> list[Any]:
    import webdataset as wds

    found = wds.WebDataset([str(path) for path in paths], shardshuffle=False, empty_check=False)
    return [{key: value for key, value in sample.items() if key == "__key__" or not key.startswith("__")} for sample in found]


def _samples() -> list[dict[str, Any]]:
    return [
        {
            "__key__": f"folder/{i:04}",
            "txt": f"text {i} ä",
            "cls": i,
            "npy": np.arange(i, dtype=np.float32),
            "json": {"a": [i]},
            "bin": bytes(range(i)),
        }
        for i in range(7)
    ]


def _webdataset(name: str, settings: dict[str, Any], folder: Path) -> Any:
    import webdataset as wds

    path = folder / name
    samples = _samples()
    if not settings.get("encoder", True):
        samples = [{"__key__": each["__key__"], "bin": each["bin"], "x.BIN": b"1"} for each in samples]
    with wds.TarWriter(str(path), **settings) as writer:
        for sample in samples:
            writer.write(sample)
    return lambda: _read(path, name.endswith(".gz")), _by_webdataset([path])


def _shards(folder: Path) -> Any:
    import webdataset as wds

    with wds.ShardWriter(str(folder / "%04d.tar"), maxcount=3, verbose=0) as writer:
        for sample in _samples():
            writer.write(sample)
    paths = sorted(folder.glob("*.tar"))
    return lambda: _read(paths), _by_webdataset(paths)


def _other_keys(folder: Path) -> Any:
    import webdataset as wds

    path = folder / "file.tar"
    with wds.TarWriter(str(path)) as writer:
        for i in range(4):
            writer.write({"__key__": str(i), ("a" if i % 2 else "b"): b"x" * i})
    return lambda: _read(path), _by_webdataset([path])


def _members(long: bool) -> dict[str, bytes]:
    before = f"{_LONG}/" if long else ""
    return {
        f"{before}{key}.{ending}": f"{key} {ending}".encode() * i
        for i, key in enumerate(("0001", "0002", "ä 3"))
        for ending in ("cls", "txt", "x.y")
    }


def _by_tarfile(path: Path) -> list[Any]:
    """The samples as WebDataset's rules make them of what `tarfile` reads."""
    found: dict[str, dict[str, Any]] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isfile():
                folder, slash, base = member.name.rpartition("/")
                stem, _, ending = base.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                found.setdefault(folder + slash + stem, {"__key__": folder + slash + stem})[ending.lower()] = file.read()
    return list(found.values())


def _python(form: int, mode: Any, folder: Path, long: bool = False, said: bool = True) -> Any:
    path = folder / "file.tar"
    with tarfile.open(path, mode, format=form) as tar:
        tar.addfile(_folder_member())
        for name, data in _members(long).items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1.5 if form == tarfile.PAX_FORMAT else 1
            tar.addfile(member, io.BytesIO(data))
    return lambda: _read(path, said and mode == "w:gz"), _by_tarfile(path)


def _folder_member() -> tarfile.TarInfo:
    member = tarfile.TarInfo("some.folder")
    member.type = tarfile.DIRTYPE
    return member


def _link(kind: bytes, folder: Path) -> Any:
    path = folder / "file.tar"
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("1.txt")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("2.txt")
        link.type, link.linkname = kind, "1.txt"
        tar.addfile(link)
    return lambda: _read(path), None


def _twice(folder: Path) -> Any:
    path = folder / "file.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("1.a", "2.a", "1.b"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    return lambda: _read(path), _by_webdataset([path])


def _written(folder: Path, long: bool) -> list[str]:
    """Write the members; returns their names in order, since a program takes those of a folder in the order of the disk."""
    source = folder / "source"
    for name, data in _members(long).items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    return sorted(_members(long))


def _program(command: list[str], folder: Path, long: bool = False) -> Any:
    path = folder / "file.tar"
    names = _written(folder, long)
    subprocess.run([*command, "-cf", str(path), *names], cwd=folder / "source", check=True)
    packed = {"--gzip", "-z"} & {*command}
    theirs = None if {"--zstd", "--format=cpio", "--format=zip"} & {*command} else _by_tarfile(path)
    return lambda: _read(path, bool(packed)), theirs


def _concatenated(folder: Path) -> Any:
    path = folder / "file.tar"
    for number, name in enumerate(("file.tar", "other.tar")):
        source = folder / f"source{number}"
        source.mkdir()
        (source / f"{number}.txt").write_text(f"text {number}")
        subprocess.run(["tar", "-cf", str(folder / name), "-C", str(source), f"{number}.txt"], check=True)
    subprocess.run(["tar", "--concatenate", "-f", str(path), str(folder / "other.tar")], check=True)
    return lambda: _read(path), _by_tarfile(path)


def _sparse(command: list[str], folder: Path) -> Any:
    with (folder / "1.bin").open("wb") as file:
        file.seek(1 << 22)
        file.write(b"x")
    subprocess.run([*command, "-cf", "file.tar", "1.bin"], cwd=folder, check=True)
    return lambda: _read(folder / "file.tar"), None

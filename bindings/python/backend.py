"""How a wheel of kvik is built: by maturin, and before that the shared library that `import kvik` loads.

`pip install .` calls it, as PEP 517 says. `python backend.py` only puts the library beside the package's sources, for
another system with `--target TARGET`, linked by zig with `--zig` (`pip install cargo-zigbuild`).
"""
import argparse
import os
import pathlib
import platform
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bindings/python/kvik"
RELEASE = "target/release"


def stage_library(target=None, zig=False):
    """Builds the library, beside the binary so that nothing is built twice, and copies it to where maturin takes it.

    KVIK_TARGET names another build than `target/release`, whose library is there already.
    """
    build = ["cargo", "zigbuild" if zig else "build", "--release", "--locked", "-p", "kvik-uniffi"]
    if target:
        build += ["-p", "kvik"]
    env = dict(os.environ)
    if target and "musl" in target:
        # A static C library is for programs, and no shared library can be made with it.
        env["RUSTFLAGS"] = "-C target-feature=-crt-static"
    # manylinux2014 has glibc 2.17, and zig links to the one that is named.
    linked = f"{target}.2.17" if zig and target.endswith("-gnu") else target
    folder = os.environ.get("KVIK_TARGET", RELEASE)
    if folder == RELEASE:
        subprocess.run([*build, *(["--target", linked] if target else [])], cwd=ROOT, env=env, check=True)
        folder = f"target/{target or ''}/release"
    built = ROOT / folder / library_name(target or platform.system().lower())
    for old in PACKAGE.glob("*kvik_uniffi.*"):
        old.unlink()
    shutil.copy(built, PACKAGE)
    if target is None and shutil.which("strip"):
        subprocess.run(["strip", "-x", PACKAGE / built.name], check=True)


def library_name(system):
    if "windows" in system:
        return "kvik_uniffi.dll"
    return "libkvik_uniffi.dylib" if "darwin" in system else "libkvik_uniffi.so"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    import maturin

    stage_library()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("there is no sdist: maturin packs one crate with what it needs, and the wheel has two")


def __getattr__(name):
    """All else is maturin's."""
    import maturin

    return getattr(maturin, name)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--target")
    arguments.add_argument("--zig", action="store_true")
    stage_library(**vars(arguments.parse_args()))

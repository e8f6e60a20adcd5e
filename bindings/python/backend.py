"""How a wheel of kvik is built: by maturin, and before that the shared library that `import kvik` loads.

`pip install .` calls it, as PEP 517 says; `python backend.py` only puts the library beside the package's sources.
"""
import pathlib
import platform
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bindings/python/kvik"
NAMES = {"Darwin": "libkvik_uniffi.dylib", "Windows": "kvik_uniffi.dll"}


def stage_library():
    """Builds the library, beside the binary so that nothing is built twice, and copies it to where maturin takes it."""
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "kvik", "-p", "kvik-uniffi"], cwd=ROOT, check=True)
    name = NAMES.get(platform.system(), "libkvik_uniffi.so")
    shutil.copy(ROOT / "target/release" / name, PACKAGE / name)
    if shutil.which("strip"):
        subprocess.run(["strip", "-x", PACKAGE / name], check=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    import maturin

    stage_library()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def __getattr__(name):
    """All else is maturin's."""
    import maturin

    return getattr(maturin, name)


if __name__ == "__main__":
    stage_library()

"""The release workflow, which runs elsewhere: it can be read, and names the versions and files that are tried here."""
import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github/workflows/release.yml"


def steps():
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    for job in jobs.values():
        assert set(job.get("needs", []) if isinstance(job.get("needs"), list) else [job.get("needs", "check")]) <= set(jobs)
        yield from job["steps"]


def test_every_step_does_one_thing():
    found = list(steps())
    assert len(found) > 15
    for step in found:
        assert ("run" in step) != ("uses" in step), step


def test_its_tools_are_those_of_ci():
    run = "\n".join(step.get("run", "") for step in steps())
    ci = (ROOT / ".ci/setup.sh").read_text() + (ROOT / "tests/packages/requirements.txt").read_text()
    for name, variable in (("cargo-deb", "CARGO_DEB_VERSION"), ("cargo-cyclonedx", "CYCLONEDX_VERSION")):
        assert set(re.findall(rf"cargo install {name} --version (\S+)", run)) == {re.search(rf"{variable}=(\S+)", ci)[1]}
    assert set(re.findall(r"maturin==([\d.]+)", run)) == set(re.findall(r"maturin==([\d.]+)", ci))


def test_the_files_that_it_names_are_there():
    run = "\n".join(step.get("run", "") for step in steps())
    paths = set(re.findall(r"(?:\.ci|packaging)/[\w./]+", run))
    assert {".ci/run", ".ci/packages", ".ci/sbom", "packaging/Containerfile", "packaging/homebrew/kvik.rb"} <= paths
    assert all((ROOT / path).is_file() for path in paths), paths


def test_the_container_is_built_with_the_toolchain_of_the_repository():
    pinned = re.search(r'channel = "(\d+\.\d+)', (ROOT / "rust-toolchain.toml").read_text())[1]
    assert f"rust:{pinned}-alpine" in (ROOT / "packaging/Containerfile").read_text()


def test_every_package_has_the_tls_that_runs_on_every_processor():
    files = (WORKFLOW, ROOT / "packaging/Containerfile", ROOT / "packaging/homebrew/kvik.rb")
    lines = [line for path in files for line in path.read_text().splitlines()]
    builds = [line for line in lines if re.search(r'(cargo|maturin) build|"cargo", "install"', line)]
    assert len(builds) >= 4, builds
    assert all("tls-ring" in build for build in builds), builds

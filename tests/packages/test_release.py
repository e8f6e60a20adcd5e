"""The release workflow, which runs elsewhere: it can be read, and names the versions and files that are tried here."""
import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github/workflows/release.yml"
FENCE = re.compile(r"^```(\w*).*?\n(.*?)^```$", re.M | re.S)
# What a packaged file has where the release workflow writes the repository's name.
UNWRITTEN = "@REPOSITORY@"


def jobs_of_the_workflow():
    return yaml.safe_load(WORKFLOW.read_text())["jobs"]


def steps():
    jobs = jobs_of_the_workflow()
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


def test_a_release_is_proven_whole_and_by_another_part_than_the_one_before():
    check = jobs_of_the_workflow()["check"]
    assert [step["run"] for step in check["steps"] if ".ci/run" in step.get("run", "")] == ["bash .ci/run full"]
    checkout, = (step for step in check["steps"] if step.get("uses", "").startswith("actions/checkout@"))
    assert checkout["with"]["fetch-depth"] == 0, "parts are chosen by the number of commits"
    assert check["container"].startswith("debian:"), "CONTRIBUTING.md says where `.ci/run` runs"


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


def commands(page):
    """What a page has its readers type: lines of blocks of a shell, and code in sentences and tables that has arguments."""
    text = page.read_text()
    typed = [line for kind, block in FENCE.findall(text) if kind in ("sh", "console") for line in block.splitlines()]
    spans = [span for line in FENCE.sub("", text).splitlines() for span in line.split("`")[1::2]]
    return typed + [span for span in spans if " " in span]


def test_no_command_of_a_page_names_what_only_a_release_writes():
    files = [path for path in (ROOT / "packaging").rglob("*") if path.is_file()]
    unwritten = [str(path.relative_to(ROOT)) for path in files if UNWRITTEN in path.read_text()]
    assert "packaging/homebrew/kvik.rb" in unwritten
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    typed = [(page.name, command) for page in pages for command in commands(page)]
    assert len(typed) > 300, "the pages are read as they are written"
    assert not [one for one in typed if any(name in one[1] for name in [UNWRITTEN, *unwritten])]


def test_pip_installs_into_an_environment():
    """Debian's pip refuses to install anywhere else; a block is typed into one shell."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = [block for page in pages for kind, block in FENCE.findall(page.read_text()) if kind == "sh"]
    blocks = [block for block in blocks if re.search(r"^pip install ", block, re.M)]
    assert len(blocks) >= 3
    assert all(re.search(r"/bin/activate\n(.*\n)*pip install ", block) for block in blocks), blocks

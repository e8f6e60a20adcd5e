"""The files of the page: none is left over, and none asks another server for anything."""
import re

from server import ROOT

PAGE = ROOT / "crates/kvik-server/page"
SOURCES = [path for path in PAGE.rglob("*") if path.is_file()]


def test_every_file_is_part_of_the_page():
    index = (PAGE / "index.html").read_text()
    modules = {path for path in SOURCES if path.suffix == ".js"}
    assert imported(PAGE / "main.js", set()) == modules
    styles = {str(path.relative_to(PAGE)) for path in SOURCES if path.suffix == ".css"}
    assert set(re.findall(r'"/page/([^"]+\.css)"', index)) == styles


def imported(module, seen):
    """The modules that one needs, itself included."""
    if module not in seen:
        seen.add(module)
        for path in re.findall(r'(?:from|import) "(\.[^"]+)"', module.read_text()):
            imported((module.parent / path).resolve(), seen)
    return seen


def test_nothing_is_markup_by_way_of_a_string():
    ways = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\(|new Function|srcdoc")
    assert [path.name for path in SOURCES if ways.search(path.read_text())] == []


def test_no_file_names_another_server():
    names = re.compile(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}")
    found = {match for path in SOURCES for match in names.findall(path.read_text())}
    assert found <= {"http://www.w3.org"}, found

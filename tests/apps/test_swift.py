"""What is written in Swift by hand: no compiler is at hand where CI runs, so a parser reads it. Types are not checked."""
import pathlib

import pytest
import tree_sitter
import tree_sitter_swift

SWIFT = pathlib.Path(__file__).resolve().parents[2] / "bindings/swift"
SOURCES = [path for path in SWIFT.rglob("*.swift") if path.name != "Generated.swift"]
PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_swift.language()))


def parse(text):
    """Where a text is no Swift: line and what is there."""
    # The grammar does not know how a module's version is asked for.
    tree = PARSER.parse(text.replace(", _version: 2", "").encode())
    return [(node.start_point.row + 1, node.text.decode()) for node in walk(tree.root_node) if node.is_error or node.is_missing]


def walk(node):
    yield node
    for child in node.children:
        yield from walk(child)


def test_the_parser_finds_what_is_missing():
    assert parse("func a() {}\n") == []
    assert parse("func a( {}\n") != []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_sources_are_swift(path):
    assert parse(path.read_text()) == []


def test_all_sources_are_there():
    assert {"KvikLanguageModel.swift", "Model.swift", "Package.swift"} <= {path.name for path in SOURCES}

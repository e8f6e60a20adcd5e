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


def test_sampling_that_is_not_asked_for_is_left_to_the_model():
    text = (SWIFT / "Sources/KvikFoundationModels/Requests.swift").read_text()
    body = text[text.index("private struct Sampling"):].split("\n}\n")[0]
    for field in ("temperature: Double?", "topP: Double?", "topK: Int64?", "minP: Double?", "seed: Int64?"):
        assert f"    var {field}\n" in body, field
    # A closure is a literal to the grammar too.
    literals = [node for node in walk(PARSER.parse((body + "\n}\n").encode()).root_node) if "literal" in node.type]
    numbers = {node.text.decode() for node in literals if node.type != "lambda_literal"}
    # Those that switch a setting off, and the temperature of greedy.
    assert numbers <= {"0", "1"}, numbers


def test_all_sources_are_there():
    assert {"KvikLanguageModel.swift", "Model.swift", "Package.swift"} <= {path.name for path in SOURCES}

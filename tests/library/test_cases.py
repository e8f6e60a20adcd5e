"""One list of cases in every language: transcripts that are equal to the byte, and what a server says to the same."""
from cases import read_line, read_list

# What a language lacks, and then skips.
LACKS = {}
FIRST = {}


def outcomes(text):
    """Each line of the list with that of the transcript; none where it was skipped."""
    said, paired, skips = iter(text.split("\n")), [], False
    for line in read_list():
        outcome = next(said) if line.operation == "case" or not skips else None
        if line.operation == "case":
            skips = read_line(outcome).find("skipped") == "yes"
        paired.append((line, outcome))
    assert list(said) == [""], "a line for a line"
    return paired


def as_set(expect):
    return expect if isinstance(expect, set) else {expect}


def test_every_line_is_answered_and_nothing_is_skipped_that_a_language_has(transcript):
    language, text = transcript
    read = [(line, read_line(outcome)) for line, outcome in outcomes(text) if outcome]
    assert all(outcome.operation == line.operation for line, outcome in read)
    skipped = {line.get("needs") for line, outcome in read if outcome.find("skipped")}
    assert skipped <= LACKS.get(language, set())
    kinds = {outcome.find("error") for _, outcome in read} - {None}
    assert kinds == {"argument", "closed", "disk", "memory", "model", "request"}


def test_the_transcript_is_that_of_the_other_languages(transcript):
    language, text = transcript
    first, expect = FIRST.setdefault("transcript", (language, outcomes(text)))
    for (line, outcome), (_, theirs) in zip(outcomes(text), expect, strict=True):
        if outcome and theirs and line.operation != "case":
            assert outcome == theirs, f"{language} and {first}: {line}"


def test_the_server_says_the_same(transcript, served):
    _, text = transcript
    compared = 0
    for (line, outcome), fields in zip(outcomes(text), served, strict=True):
        for name, expect in fields.items() if outcome else ():
            values = read_line(outcome).all(name)
            said = [str(bool(values))] if name == "error" else values
            allowed = [expect] if isinstance(expect, list) else [[str(one)] for one in as_set(expect)]
            assert said in allowed, f"{name} of {line}: {outcome}, and the server {fields}"
            compared += 1
    assert compared > 200

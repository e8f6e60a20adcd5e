"""The apps' texts: the same ones in both languages, with the same places to fill in, and none that nothing shows."""
import pathlib
import re
import xml.etree.ElementTree as xml

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
ANDROID = "{http://schemas.android.com/apk/res/android}"
APPS = ["notifications", "endless"]


def main(app):
    return EXAMPLES / app / "android/src/main"


def texts(app, folder):
    """Each text by its name, those of lists and of numbers of things together."""
    root = xml.parse(main(app) / "res" / folder / "strings.xml").getroot()
    return {element.get("name"): "".join(element.itertext()) for element in root}


@pytest.mark.parametrize("app", APPS)
def test_both_languages_say_the_same(app):
    english, chinese = texts(app, "values"), texts(app, "values-zh")
    assert english.keys() == chinese.keys()
    for name, text in english.items():
        places = [set(re.findall(r"%\d\$[\d.]*\w", said)) for said in (text, chinese[name])]
        assert places[0] == places[1], name


@pytest.mark.parametrize("app", APPS)
def test_every_text_is_shown_somewhere(app):
    sources = [path.read_text() for path in main(app).rglob("*") if path.suffix in {".kt", ".xml"}]
    named = set(re.findall(r"(?:@string/|R\.(?:string|array|plurals)\.)(\w+)", "\n".join(sources)))
    assert texts(app, "values").keys() - named == set()


@pytest.mark.parametrize("app", APPS)
def test_what_can_be_touched_is_named_and_large_enough(app):
    for path in (main(app) / "res/layout").glob("*.xml"):
        for element in xml.parse(path).iter():
            get = lambda name: element.get(ANDROID + name)
            if element.tag in {"Button", "EditText", "RadioButton", "ImageButton"}:
                assert any(map(get, ["text", "hint", "contentDescription"])), (path.name, get("id"))
                assert "48dp" in {get("minHeight"), get("layout_height")}, (path.name, get("id"))

"""llama-server's slots are names here: what was computed under one is saved, found after a restart, and erased."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server import Server  # noqa: E402

STORY = "Once upon a time there was a folder full of letters, and nobody read them. " * 4


def ask(server, slot):
    body = {"prompt": STORY, "n_predict": 8, "temperature": 0, "ignore_eos": True, "id_slot": slot, "return_tokens": True}
    answer = server.post("/completion", body)
    assert answer.status == 200, answer.text
    assert answer.json["id_slot"] == slot
    return answer.json


def change(server, slot, action, filename="story.bin"):
    answer = server.post(f"/slots/{slot}?action={action}", {"filename": filename})
    assert answer.status == 200, answer.text
    return answer.json


def test_what_a_slot_has_computed_is_saved_restored_and_erased(tmp_path):
    flags = {"env": {"KVIK_CACHE_DISK": str(tmp_path / "cache"), "KVIK_STATE_DIR": str(tmp_path / "state")}}
    with Server(**flags) as server:
        first = ask(server, 1)
        computed = first["timings"]["prompt_n"] + first["tokens_predicted"] - 1
        assert change(server, 1, "save")["n_saved"] == computed
        pinned = server.get("/v1/prompts/slot:story.bin").json
        assert pinned["pinned"] and pinned["tokens"] == computed
    with Server(**flags) as server:
        assert change(server, 0, "restore")["n_restored"] == computed
        again = ask(server, 0)
        assert again["tokens"] == first["tokens"]
        assert again["timings"]["prompt_n"] == 1, "only the last token of the prompt is computed"
        assert change(server, 0, "erase")["n_erased"] == computed
        assert change(server, 0, "erase")["n_erased"] == 0
        assert ask(server, 1)["timings"]["prompt_n"] == first["timings"]["prompt_n"]


def test_what_runs_is_not_shown_where_it_shall_not_be():
    with Server("--no-slots") as server:
        assert server.get("/slots").status == 501

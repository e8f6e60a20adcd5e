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


def sampled(server, prompt, seed):
    """The answer to a prompt in a slot, the tokens that were found for it, and those that are computed behind it."""
    body = {"prompt": prompt, "n_predict": 64, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "seed": seed, "id_slot": 1}
    answer = server.post("/completion", body).json
    found = answer["timings"]["cache_n"]
    return answer, found, found + answer["timings"]["prompt_n"] + answer["tokens_predicted"] - 1


def test_a_slot_has_the_tokens_that_were_computed():
    with Server("--threads", "2") as server:
        for seed in range(32):
            assert server.request("DELETE", "/v1/cache", None, {}).status == 200
            first, _, computed = sampled(server, STORY.strip(), seed)
            again, found, computed_again = sampled(server, STORY.strip() + first["content"] + " And so on.", seed)
            # The tokenizer would have divided the answer otherwise.
            if again["kvik"]["cache"].get("retokenised") and found == computed:
                break
        else:
            raise AssertionError("no answer of these is divided otherwise")
        assert change(server, 1, "erase")["n_erased"] == computed_again
        assert server.get("/v1/cache").json["prefixes"] == []


def test_what_runs_is_not_shown_where_it_shall_not_be():
    with Server("--no-slots") as server:
        assert server.get("/slots").status == 501

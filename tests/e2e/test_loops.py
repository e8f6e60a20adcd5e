"""Answers that only repeat themselves are ended where a client asks for it."""
SENTENCE = "I am a small model that lives on your phone and answers every question. "
LOOP = {
    "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 500, "temperature": 0,
    "guided_regex": "(" + SENTENCE.replace(".", r"\.") + "){60}",
}
STOPS = LOOP | {"kvik": {"stop_loops": True}}


def test_a_client_gets_its_tokens_unless_it_asks_for_an_end(server):
    whole = server.post("/v1/chat/completions", LOOP).json
    assert (whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]) == ("length", 500)
    assert "loop" not in whole["kvik"]
    cut = server.post("/v1/chat/completions", STOPS).json
    assert cut["choices"][0]["finish_reason"] == "stop" and cut["usage"]["completion_tokens"] < 500
    said, found = cut["choices"][0]["message"]["content"], cut["kvik"]["loop"]
    # The first copy may be divided into other tokens than the others.
    assert found["start_token"] <= found["period_tokens"] and 20 <= found["period_tokens"] <= 80, found
    assert (SENTENCE * 60).startswith(said) and 2 <= said.count("phone") <= 3, said

"""Embeddings through the official Python client, and reranking beside it."""
import base64
import json
import math
import struct
import urllib.request

import openai
import pytest
from asked import KEY, MODEL

TEXTS = ["Your parcel arrives on Tuesday.", "Anna: shall we meet at eight?", "Heavy rain is expected on Friday."]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def embed(client):
    def create(texts, **options):
        answer = client.embeddings.create(model=MODEL, input=texts, **options)
        assert [data.index for data in answer.data] == list(range(len(answer.data)))
        return [data.embedding for data in answer.data], answer
    return create


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def test_a_batch_is_its_texts(embed):
    """The client asks for base64 where nothing is said; both say the same, alone or together."""
    together, answer = embed(TEXTS)
    assert answer.object == "list" and answer.model == MODEL
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)
    floats, _ = embed(TEXTS, encoding_format="float")
    coded, _ = embed(TEXTS, encoding_format="base64")
    alone = [embed(text)[0][0] for text in TEXTS]
    decoded = [list(struct.unpack(f"<{len(base64.b64decode(text)) // 4}f", base64.b64decode(text))) for text in coded]
    narrow = [[struct.unpack("<f", struct.pack("<f", x))[0] for x in vector] for vector in floats]
    assert together == alone == decoded == narrow
    assert all(math.isclose(sum(x * x for x in vector), 1, rel_tol=1e-5) for vector in together)
    assert all(cosine(together[i], together[j]) < 0.9999 for i in range(3) for j in range(i))


def test_a_search_finds_the_text(embed):
    texts = TEXTS + [f"Note number {i} about something else." for i in range(40)]
    known, _ = embed(texts)
    for index, text in enumerate(TEXTS):
        [query], _ = embed(text)
        assert max(range(len(texts)), key=lambda i: cosine(query, known[i])) == index


def test_prefixes_are_cached(embed):
    prefix = "Represent this sentence for retrieval of notifications. " * 12
    embed(prefix + "First.")
    _, answer = embed([prefix + text for text in TEXTS])
    details = answer.usage.model_extra["prompt_tokens_details"]
    assert details["cached_tokens"] > 0.8 * answer.usage.prompt_tokens


def test_dimensions_and_token_ids(embed):
    [whole], _ = embed(TEXTS[0])
    [short], _ = embed(TEXTS[0], dimensions=8)
    assert len(short) == 8 and cosine(short, whole[:8]) > 0.999999
    vectors, answer = embed([[5, 6, 7, 8], [5, 6, 7]])
    assert len(vectors) == 2 and answer.usage.prompt_tokens == 7


def test_two_thousand_texts(embed):
    texts = [f"Message {i % 100}: parcel {i % 7}." for i in range(2048)]
    vectors, _ = embed(texts)
    assert len(vectors) == 2048 and vectors[3] == embed(texts[3])[0][0]


@pytest.mark.parametrize("body, param, words", [
    (dict(input=[]), "input", "empty"),
    (dict(input=["a", ""]), "input[1]", "nothing"),
    (dict(input=["a", "b", "c", "word " * 3000]), "input[3]", "2048"),
    (dict(input=[[1], [10 ** 9]]), "input[1]", "below"),
    (dict(input="a", dimensions=100_000), "dimensions", "100000"),
    (dict(input=["a"] * 2049), "input", "2049"),
])
def test_errors_name_the_field(client, body, param, words):
    with pytest.raises(openai.BadRequestError) as error:
        client.embeddings.create(model=MODEL, **body)
    assert error.value.param == param and words in error.value.message


def test_another_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="text-embedding-3-small", input="a")


def post(server, path, body):
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_llama_servers_form(server, embed):
    [one] = post(server, "/embedding", {"content": TEXTS[0]})
    assert one["index"] == 0 and cosine(one["embedding"][0], embed(TEXTS[0])[0][0]) > 0.999999


def test_documents_are_ordered(server):
    body = {"model": MODEL, "query": TEXTS[1], "documents": TEXTS, "top_n": 2, "return_documents": True}
    answer = post(server, "/v1/rerank", body)
    assert [len(answer["results"]), answer["results"][0]["index"]] == [2, 1]
    assert answer["results"][0]["document"]["text"] == TEXTS[1]
    assert answer["results"][0]["relevance_score"] == pytest.approx(1)

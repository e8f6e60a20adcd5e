"""Spans of answers, as a collector of OpenTelemetry gets them; and the dashboard, whose numbers the server has."""
import http.server
import json
import re
import threading
import time

import pytest
from server import ROOT, Server

TRACE, REFUSED = "4bf92f3577b34da6a3ce929d0e0e4736", "a3ce929d0e0e47364bf92f3577b34da6"
QUESTION = {"messages": [{"role": "user", "content": "Hello there, my friend."}], "max_tokens": 8, "temperature": 0}


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.took.append((self.path, self.headers["Content-Type"], json.loads(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.took = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def spans(collector):
    return [span for _, _, body in collector.took for resource in body["resourceSpans"]
            for scope in resource["scopeSpans"] for span in scope["spans"]]


def attributes(span):
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


def test_every_answer_is_a_span_and_what_it_went_through_are_its_children(collector, tmp_path):
    # A collector of this machine is reached without the proxy, which would look for it elsewhere.
    stall, proxy = tmp_path / "stall", dict.fromkeys(("ALL_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:1")
    env = proxy | {"KVIK_TEST_STALL": str(stall)}
    with Server("--otlp", f"http://127.0.0.1:{collector.server_address[1]}", env=env) as server:
        answer = server.post("/v1/chat/completions", QUESTION, traceparent=f"00-{TRACE}-00f067aa0ba902b7-01").json
        assert server.post("/v1/messages", QUESTION, **{"anthropic-version": "2023-06-01"}).status == 200
        assert server.post("/v1/chat/completions", {"messages": []}, traceparent=f"00-{REFUSED}-00f067aa0ba902b7-01").status == 400
        long = QUESTION | {"max_tokens": 1500, "ignore_eos": True, "stream": True}
        with server.stalled(stall, lambda: server.begin_stream("/v1/chat/completions", long)) as (connection, response):
            response.close()
            connection.close()
        # The span of an answer ends before its request leaves the engine.
        deadline = time.monotonic() + 20
        while server.metrics()["kvik_requests_running"] > 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert {(path, kind) for path, kind, _ in collector.took} == {("/v1/traces", "application/json")}
    answers = [span for span in spans(collector) if span["name"].startswith("chat ")]
    assert len(answers) >= 3 and REFUSED not in {span["traceId"] for span in answers}, "what was refused before the model is none"
    first = next(span for span in answers if span["traceId"] == TRACE)
    assert first["parentSpanId"] == "00f067aa0ba902b7"
    said = attributes(first)
    usage = answer["usage"]
    assert (int(said["gen_ai.usage.input_tokens"]), int(said["gen_ai.usage.output_tokens"])) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert said["gen_ai.response.id"] == answer["id"] and said["gen_ai.provider.name"] == "kvik"
    children = [span for span in spans(collector) if span.get("parentSpanId") == first["spanId"]]
    assert sorted(span["name"] for span in children) == ["decode", "prefill", "queue"]
    assert all(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) for span in spans(collector))
    assert [attributes(span).get("error.type") for span in answers].count("cancelled") == 1
    assert "my friend" not in json.dumps(spans(collector))


def test_a_full_queue_is_no_span_and_prompts_in_parallel_are_within_theirs(collector, tmp_path):
    prompts = {"prompt": ["Hello there, my friend."] * 8, "max_tokens": 8, "temperature": 0}
    stall, address = tmp_path / "stall", f"http://127.0.0.1:{collector.server_address[1]}"
    long = QUESTION | {"max_tokens": 1500, "ignore_eos": True, "stream": True}
    # As many prompts as there are places, one of which is taken: more would be refused at any time.
    with Server("--otlp", address, "--parallel", "1", "--queue", "7", env={"KVIK_TEST_STALL": str(stall)}) as server:
        with server.stalled(stall, lambda: server.begin_stream("/v1/chat/completions", long)) as (connection, response):
            assert server.post("/v1/completions", prompts).json["error"]["code"] == "queue_full"
            response.close()
            connection.close()
    assert not [span for span in spans(collector) if span["name"].startswith("text_completion ")]
    with Server("--otlp", address) as server:
        assert server.post("/v1/completions", prompts).status == 200
    whole = next(span for span in spans(collector) if span["name"].startswith("text_completion "))
    children = [span for span in spans(collector) if span.get("parentSpanId") == whole["spanId"]]
    assert len(children) == 3
    for end in ("startTimeUnixNano", "endTimeUnixNano"):
        assert all(int(whole["startTimeUnixNano"]) <= int(child[end]) <= int(whole["endTimeUnixNano"]) for child in children)


def test_a_collector_that_is_gone_costs_nothing():
    with Server("--otlp", "http://127.0.0.1:9") as server:
        began = time.monotonic()
        assert server.post("/v1/chat/completions", QUESTION).status == 200
        assert time.monotonic() - began < 5


def test_the_dashboard_asks_for_numbers_that_the_server_has():
    dashboard = json.loads((ROOT / "docs/grafana/kvik.json").read_text())
    asked = {name for panel in dashboard["panels"] for target in panel["targets"] for name in re.findall(r"kvik_\w+", target["expr"])}
    with Server("--memory", "on") as server:
        server.post("/v1/chat/completions", QUESTION)
        has = set(re.findall(r"^(kvik_\w+)", server.get("/metrics").text, re.M))
    missing = {name for name in asked if name not in has}
    assert len(asked) > 20 and not missing

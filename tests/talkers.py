"""Clients that talk with a server that may be lost at any moment, and know what they were answered."""
import hashlib
import json
import random

KEYS = dict(acme="key of acme", beta="key of beta")
TENANTS = "".join(
    f'[tenant.{name}]\nkeys = ["sha256:{hashlib.sha256(key.encode()).hexdigest()}"]\n' for name, key in KEYS.items()
)
# What each conversation says of the dog, and no other does.
DOGS = ["Bolt", "Luna", "Biscuit", "Pepper"]


class Talker:
    """One conversation that the server keeps: it sends what is new, and remembers what was answered."""

    def __init__(self, number, seed):
        self.name, self.dog = f"talk-{number // 2}", DOGS[number]
        self.key = list(KEYS.values())[number % 2]
        self.dice = random.Random(f"{seed} {number}")
        self.known, self.sent, self.wrong, self.summaries, self.unknown = [], None, [], set(), 0

    def talk(self, server):
        """Says one thing after the other, until the server is killed."""
        try:
            while True:
                self.say(server)
        except Exception:
            if not server.is_killed:
                raise

    def say(self, server):
        number = len(self.known) // 2
        self.sent = f"Please remember that my dog is called {self.dog}. Bus {number} was late." if number % 6 == 0 else f"The bus {number} was late again. I had noodles for lunch."
        body = dict(messages=[dict(role="user", content=self.sent)], max_tokens=16, temperature=0, kvik=dict(conversation=self.name))
        if self.dice.random() < 0.5:
            text = self.streamed(server, body)
        else:
            answered = server.post("/v1/chat/completions", body, Authorization=f"Bearer {self.key}")
            assert answered.status == 200, answered.text
            text = answered.json["choices"][0]["message"]["content"]
        self.known += [self.sent, text]
        self.sent = None

    def streamed(self, server, body):
        connection, response = server.open_stream("/v1/chat/completions", body | dict(stream=True), key=self.key)
        assert response.status == 200, response.read()
        text = ""
        for line in response:
            if line == b"data: [DONE]\n":
                connection.close()
                return text
            if line.startswith(b"data: "):
                frame = json.loads(line[6:])
                assert "choices" in frame, frame
                text += frame["choices"][0]["delta"].get("content") or ""
        raise AssertionError("the stream has no end")

    def check(self, server):
        """What was answered is there, and nothing else but the turn whose end was on its way."""
        shown = server.get(f"/v1/conversations/{self.name}", Authorization=f"Bearer {self.key}")
        found = [message["content"] for message in shown.json["messages"]] if shown.status == 200 else []
        more = found[len(self.known):]
        if found[: len(self.known)] != self.known or len(more) not in (0, 2) or (more and more[0] != self.sent):
            self.wrong.append(f"{self.name} of {self.dog}: {len(self.known)} messages answered, {len(found)} found: {found[-2:]}")
        self.unknown += bool(more)
        self.known, self.sent = found, None
        remembered = server.get(f"/v1/conversations/{self.name}/memory", Authorization=f"Bearer {self.key}")
        summary = (remembered.json.get("summary") or {}).get("text") if remembered.status == 200 else None
        if summary:
            self.summaries.add((self.dog, summary))
            others = [dog for dog in DOGS if dog != self.dog and dog in summary]
            self.wrong += [f"the summary of {self.name} of {self.dog} knows {others}: {summary}"] if others else []

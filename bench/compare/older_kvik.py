"""Another build of kvik as the peer: what a change did to speed."""
from programs import about

NAME = "older kvik"


def is_at(peer):
    """Whether this is a program, not a folder of llama.cpp's."""
    return peer.is_file()


def version(program):
    return f"{NAME}, {about([program, '--version'])}"

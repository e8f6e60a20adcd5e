"""Another build of kvik as the peer: what a change did to speed."""
from programs import about


def is_at(peer):
    """Whether this is a program, not a folder of llama.cpp's."""
    return peer is not None and peer.is_file()


def version(program):
    return f"older kvik, {about([program, '--version'])}"

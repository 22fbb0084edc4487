#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client of rocl in Python, written from docs/PROTOCOL.md and docs/vectors alone.

usage: client.py SOCKET NAME TAG TEXT

It joins the directory at SOCKET, registers a resource with type=python, finds the resource with
name=NAME, sends TEXT to it over TCP, and prints the tag and the text of the answer.
"""
import hmac
import os
import secrets
import socket
import struct
import sys

JOIN, REGISTER, LEAVE, FIND, LOOKUP = 1, 2, 5, 6, 7
JOINED, DONE, ANSWER, ERROR = 10, 11, 12, 14
HELLO, CHALLENGE, ATTACH, READY = 1, 2, 3, 4
DATA, CREDIT, GONE, BYE = 16, 17, 19, 20
FIRST_CREDIT, OVERHEAD, ABSENT, BOUNDED = 65536, 64, 2**32 - 1, 1 << 31


def exactly(sock, n):
    """Reads n bytes."""
    data = sock.recv(n, socket.MSG_WAITALL) if n else b""
    if len(data) < n:
        raise EOFError("the connection has ended")
    return data


def encode(attrs):
    """Encodes (name, value) pairs as a list; the value None is wanted."""
    body = b""
    for name, value in attrs:
        name, size = name.encode(), ABSENT if value is None else len(value.encode())
        body += struct.pack("<HI", len(name), size) + name + (value or "").encode()
    return struct.pack("<HI", len(attrs), 6 + len(body)) + body


def decode(data):
    """Decodes a list into (name, value) pairs with values of bytes."""
    attrs, at = [], 6
    for _ in range(struct.unpack_from("<H", data)[0]):
        n, size = struct.unpack_from("<HI", data, at)
        name, at = data[at + 6 : at + 6 + n].decode(), at + 6 + n
        size, value = (0, None) if size == ABSENT else (size, data[at : at + size])
        attrs.append((name, value))
        at += size
    return attrs


class Directory:
    """One connection to a node's directory."""

    def __init__(self, path, kind):
        self.sock, self.id = socket.socket(socket.AF_UNIX), 0
        self.sock.connect(path)
        self.sock.sendall(struct.pack("<4sBBH", b"RDIR", 2, kind, 0))

    def send(self, kind, body=b""):
        self.id += 1
        self.sock.sendall(struct.pack("<IB3xQ", 12 + len(body), kind, self.id) + body)

    def ask(self, kind, body, want):
        """Sends a message and returns the body of its answer."""
        self.send(kind, body)
        while True:
            size, got, number = struct.unpack("<IB3xQ", exactly(self.sock, 16))
            body = exactly(self.sock, size - 12)
            if got == ERROR:
                raise RuntimeError(f"error {struct.unpack_from('<H', body)[0]}: {body[2:].decode()}")
            if got == want and number == self.id:
                return body  # anything else is terms that have changed

    def register(self, gid, attrs):
        return struct.unpack("<Q", self.ask(REGISTER, gid + bytes(8) + encode(attrs), DONE))[0]


class Link:
    """A session with another context over one TCP connection."""

    def __init__(self, address, me, peer, keys, cluster):
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        self.sock = socket.create_connection((host.strip("[]"), int(port)))
        self.seq = self.expected = self.taken = 0
        fnv = 0xCBF29CE484222325
        for byte in cluster:
            fnv = (fnv ^ byte) * 0x100000001B3 % 2**64
        said = struct.pack("<4sBBH16s16sQ16s", b"ROCL", 2, 0, 0, me, peer, fnv, secrets.token_bytes(16))
        self.put(HELLO, said)
        _, got, _ = self.frame()
        mac = lambda key, role, part: hmac.digest(key, bytes([role]) + said + part, "sha256")
        key = next(k for k in keys if mac(k, CHALLENGE, got[:32]) in got[32:])
        said += got
        part = struct.pack("<QQQIBBH16x", secrets.randbits(63) + 1, 0, 1, 0, 0, 0, 0)
        self.put(ATTACH, part + mac(key, ATTACH, part))
        said += part + mac(key, ATTACH, part)
        kind, got, _ = self.frame()
        assert kind == READY and hmac.compare_digest(mac(key, READY, got[:-32]), got[-32:])

    def put(self, kind, payload=b"", tag=0, src=0, dst=0):
        self.sock.sendall(struct.pack("<IBBHIIQII", len(payload), kind, 0, 0, self.seq, self.expected, tag, src, dst) + payload)
        self.seq += 16 <= kind <= 26

    def frame(self):
        """Returns the type, the payload, and the tag, src and dst of the next frame."""
        size, kind, _, _, seq, _, tag, src, dst = struct.unpack("<IBBHIIQII", exactly(self.sock, 32))
        assert kind < 16 or kind > 26 or seq == self.expected, "a gap"
        self.expected += 16 <= kind <= 26
        return kind, exactly(self.sock, size), (tag, src, dst)

    def receive(self, mine):
        """Returns the tag and the payload of the next message to the resource mine."""
        while True:
            kind, payload, (tag, src, dst) = self.frame()
            if kind == DATA and dst == mine:
                self.taken += len(payload) + OVERHEAD
                self.put(CREDIT, tag=FIRST_CREDIT + self.taken, dst=dst)  # it acknowledges too
                return tag, payload
            if kind == DATA:
                self.put(GONE, struct.pack("<I", len(payload)), tag, src, dst)
            if kind in (GONE, BYE):
                raise RuntimeError("the target has ended")


def main(path, name, tag, text):
    life = Directory(path, 1)
    joined = life.ask(JOIN, bytes(48) + encode([]), JOINED)
    me, terms = joined[:16], decode(joined[48:])
    mine = 1
    life.register(me, [("rocl.kind", "context"), ("rocl.pid", str(os.getpid()))])
    life.register(me[:12] + struct.pack(">I", mine), [("type", "python")])
    questions = Directory(path, 2)
    target = questions.ask(FIND, encode([("name", name)]), ANSWER)[:16]
    peer, serial = target[:12] + bytes(4), int.from_bytes(target[12:], "big")
    record = questions.ask(LOOKUP, peer + encode([]), ANSWER)
    address = next(v.decode() for _, v in decode(record[40:]) if v.startswith(b"tcp://"))
    keys = [v for k, v in terms if k == "key"]
    link = Link(address, me, peer, keys, dict(terms).get("cluster", b""))
    assert not serial & BOUNDED and len(text) + OVERHEAD <= FIRST_CREDIT, "it needs credit first"
    link.put(DATA, text.encode(), tag, mine, serial)
    answer = link.receive(mine)
    print(answer[0], answer[1].decode())
    link.put(BYE)
    life.send(LEAVE)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])

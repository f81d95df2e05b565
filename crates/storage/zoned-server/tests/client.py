"""Uses a server with Python's `redis` package. Run by redis_tools.rs, with the server's port."""

import sys

import redis

client = redis.Redis(port=int(sys.argv[1]), client_name="test")

assert client.ping()
assert client.set("river", "map") is True
assert client.get("river") == b"map"
assert client.set("river", "other", nx=True) is None
assert client.set("river", bytes(range(256)), xx=True) is True
assert client.get("river") == bytes(range(256))
assert client.mset({f"key{number:04}": str(number) for number in range(1000)})
assert client.mget("key0001", "nothing", "key0999") == [b"1", None, b"999"]
assert client.exists("key0001", "nothing", "river") == 2
assert client.dbsize() == 1001
assert sorted(client.scan_iter("key*5", count=30)) == [b"key%04d" % number for number in range(5, 1000, 10)]
assert client.delete("key0001", "nothing") == 1
assert client.info("server")["tcp_port"] == int(sys.argv[1])

# A long pipeline, whose replies are read at the end.
with client.pipeline(transaction=False) as pipeline:
    for number in range(20_000):
        pipeline.set(f"long{number}", "x" * 200)
        pipeline.get(f"long{number}")
    replies = pipeline.execute()
assert replies == [True, b"x" * 200] * 20_000

# Transactions, and a retry after a conflict.
with client.pipeline() as pipeline:
    assert pipeline.set("a", 1).get("a").delete("a").execute() == [True, b"1", 1]
attempts = 0


def raise_counter(pipeline):
    global attempts
    attempts += 1
    value = int(pipeline.get("counter") or 0)
    if attempts == 1:
        client.set("counter", 10)
    pipeline.multi()
    pipeline.set("counter", value + 1)


assert client.transaction(raise_counter, "counter") == [True]
assert (attempts, client.get("counter")) == (2, b"11")

for expiring in (lambda: client.set("a", 1, ex=5), lambda: client.expire("a", 5)):
    try:
        expiring()
    except redis.ResponseError:
        continue
    raise AssertionError("keys do not expire")
print("passed")

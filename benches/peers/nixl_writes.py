"""Writes of blocks into another process's memory by NIXL's Python interface, to be measured beside the library's.

    nixl_writes.py target SIZE DEPTH                prints what the other side needs, and stays until it is ended
    nixl_writes.py writer SIZE DEPTH SECONDS TOLD   is told that; DEPTH blocks on their way, each posted again when it is done

UCX over tcp, without a progress thread: it is faster so where each process has one core.
"""

import base64
import json
import os
import sys
import time

os.environ.setdefault("UCX_TLS", "tcp")
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")

import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config


def open_agent(name, size, depth):
    agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
    memory = numpy.zeros(size * depth, dtype=numpy.uint8)
    address = memory.ctypes.data
    agent.register_memory([(address, size * depth, 0, "")], "DRAM")
    return agent, memory, [agent.get_xfer_descs([(address + size * block, size, 0)], "DRAM") for block in range(depth)]


def target(size, depth):
    agent, memory, blocks = open_agent("target", size, depth)
    parts = [agent.get_agent_metadata()] + [agent.get_serialized_descs(block) for block in blocks]
    print("listening on " + ",".join(base64.b64encode(part).decode() for part in parts), flush=True)
    # Without a thread of its own it makes progress when it is asked for news. Its starter ends it.
    while True:
        agent.update_notifs()


def writer(size, depth, seconds, told):
    agent, memory, mine = open_agent("writer", size, depth)
    metadata, *theirs = [base64.b64decode(part) for part in told.split(",")]
    peer = agent.add_remote_agent(metadata)
    theirs = [agent.deserialize_descs(part) for part in theirs]
    handles = [agent.initialize_xfer("WRITE", ours, other, peer) for ours, other in zip(mine, theirs)]
    under_way = [False] * depth
    begun = time.monotonic() + seconds / 5
    done, now = 0, time.monotonic()
    # On a busy machine it may take longer until there is something to count.
    while now < begun + seconds or (done < depth and now < begun + 30):
        for block, handle in enumerate(handles):
            state = agent.check_xfer_state(handle) if under_way[block] else None
            if state == "PROC":
                continue
            if state == "DONE" and now >= begun:
                done += 1
            state = agent.transfer(handle)
            if state == "ERR":
                sys.exit("NIXL: a write failed")
            under_way[block] = True
        now = time.monotonic()
    print(json.dumps({"messages": done, "seconds": now - begun}), flush=True)
    # Taking it apart with writes under way ends in a crash (1.5.1).
    os._exit(0)


if __name__ == "__main__":
    role, size, depth = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if role == "target":
        target(size, depth)
    else:
        writer(size, depth, float(sys.argv[4]), sys.argv[5])

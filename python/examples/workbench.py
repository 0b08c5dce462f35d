# %% [markdown]
# # Verbatim in a notebook
# Cells begin at `# %%`, as editors and Jupytext have it. Each can be run by itself after those before.

# %% Tensors between two processes
import subprocess
import sys

import numpy as np

import verbatim
from verbatim.tensor import Peer

SENDER = """
import sys
import numpy as np
from verbatim.tensor import Peer
peer = Peer("127.0.0.1:0")
peer.publish("weights", np.random.default_rng(1).random((512, 512)), step=7)
print(peer.address, flush=True)
sys.stdin.read()
"""
with subprocess.Popen(
    [sys.executable, "-c", SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
) as sender:
    with Peer() as peer, peer.connect(sender.stdout.readline().strip()) as remote:
        weights = remote.get("weights", step=7)
    sender.communicate(timeout=30)
assert np.array_equal(weights, np.random.default_rng(1).random((512, 512)))
print(f"weights arrived: {weights.shape}, {weights.dtype}")

# %% A sequencer on simulated Connect-IB NICs, over the cores of its server
columns = verbatim.simulate("sequencer", design="rpc-batch", cores=[1, 2, 4], duration="100us")
for cores, rate in zip(columns["cores"], columns["rate_mops"]):
    print(f"{cores} cores: {rate:.1f} M/s")

"""The commands of docs/tensors.md run, in the environment in which the wheel is installed."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "tensors.md"
#: Is there if the distribution's package of torch is.
TORCH = Path("/usr/share/doc/python3-torch")


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def test_the_commands_of_the_guide_run(tmp_path):
    text = GUIDE.read_text()
    for port in set(re.findall(r"127\.0\.0\.1:(\d+)", text)):
        text = text.replace(port, free_port())
    text = re.sub(r"MASTER_PORT=\d+", f"MASTER_PORT={free_port()}", text)
    programs = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", text, re.DOTALL)
    for name, program in programs:
        (tmp_path / name).write_text(program)
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    if not TORCH.exists():
        blocks = [block for block in blocks if "torch" not in block]
    said = [
        subprocess.run(
            # `&` leaves nothing behind that this waits for.
            ["bash", "-euc", block], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        ).stdout
        for block in blocks
    ]
    assert len(programs) == 4
    assert "(1000, 1000) float32 999999.0" in said[0]
    assert "100 blocks stored and read" in said[1]
    for rank in range(2 if TORCH.exists() else 0):
        assert f"rank {rank}: sum 2, gradient 16" in said[2]

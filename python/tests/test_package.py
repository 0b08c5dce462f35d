"""The command that the wheel brings, and what calls it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import verbatim

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_package_is_the_installed_one():
    assert Path(verbatim.__file__).is_relative_to(sys.prefix)
    assert (Path(verbatim.__file__).parent / "py.typed").exists()


def test_the_wheel_has_the_plugin_for_nccl():
    plugin = ctypes.CDLL(str(Path(verbatim.__file__).parent / "_installed/lib/verbatim/libnccl-net-verbatim.so"))
    assert all(hasattr(plugin, f"ncclNetPlugin_v{version}") for version in range(6, 13))


def test_the_console_script_is_the_command():
    script = shutil.which("verbatim")
    assert script is not None and Path(script).is_relative_to(sys.prefix)
    said = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert re.fullmatch(r"verbatim \d+\.\d+\.\d+\n", said.stdout)


def test_programs_run_on_the_software_nic():
    done = verbatim.run(["ibv_devinfo"], capture_output=True, text=True, timeout=60, check=True)
    assert "softnic0" in done.stdout
    done = verbatim.run(["ibv_devinfo"], nic="cib", capture_output=True, text=True, timeout=60, check=True)
    assert "InfiniBand" in done.stdout
    with verbatim.software_nic(fabric="python_test") as variables:
        done = subprocess.run(["ibv_devinfo"], capture_output=True, text=True, timeout=60, check=True)
        assert "softnic0" in done.stdout
        assert os.environ["VERBATIM_FABRIC"] == "python_test"
    assert not set(variables.items()) <= set(os.environ.items())
    assert verbatim.run(["false"], timeout=60).returncode == 1


def test_a_ledger_is_explained(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        pingpong = ["ibv_rc_pingpong", "-g", "0", "-p", str(free.getsockname()[1])]
    server = subprocess.Popen([verbatim.command(), "run", "--", *pingpong], stdout=subprocess.DEVNULL)
    try:
        ledger = None
        for _ in range(50):
            try:
                ledger = verbatim.ledger([*pingpong, "127.0.0.1"], timeout=60, stderr=subprocess.DEVNULL)
                break
            except subprocess.CalledProcessError:
                # The server is not there yet.
                server.poll()
        assert ledger is not None and server.wait(60) == 0
    finally:
        server.kill()
    assert ledger.provider == "softnic" and len(ledger.processes) == 1
    ledger.save(tmp_path / "l.json")
    explanation = verbatim.explain(tmp_path / "l.json", nic="cx3")
    assert explanation == ledger.explain("cx3")
    (process,) = explanation.processes
    assert process.posted == 1000 and process.predicted_mops > 0
    # What ConnectX-3 lacks in published numbers may bound the rate, so there is no range.
    assert process.low_mops is None
    (on_cib,) = ledger.explain("cib").processes
    assert 0 < on_cib.low_mops < on_cib.predicted_mops < on_cib.high_mops
    assert process.kinds[0]["what"].startswith("RC SEND")
    assert "<table>" in explanation._repr_html_() and "<table>" in ledger._repr_html_()
    with pytest.raises(verbatim.CommandError, match="no_such_nic"):
        verbatim.explain(ledger, nic="no_such_nic")


def test_simulations_are_columns():
    columns = verbatim.simulate("sequencer", design="spec-s0", cores=[1, 2], clients=20, duration="100us")
    assert columns.rows == 2
    assert columns["cores"].tolist() == [1, 2]
    rate = columns["rate_mops"]
    assert rate.dtype == np.float64 and rate[1] > rate[0] > 0
    assert columns["verified"].all() and columns["time_s"].tolist() == [1e-4, 1e-4]
    assert "<td>spec-s0</td>" in columns._repr_html_()
    with pytest.raises(ValueError, match="sequencer"):
        verbatim.simulate("raft")
    with pytest.raises(verbatim.CommandError, match="--no-such-option"):
        verbatim.simulate("sequencer", no_such_option=1)


@pytest.mark.parametrize(("system", "options"), [("kv", {"cores": 2}), ("btree", {"keys": 10_000})])
def test_all_systems_are_simulated(system, options):
    columns = verbatim.simulate(system, clients=4, duration="50us", **options)
    assert columns.rows >= 2
    assert (columns["rate_mops"] > 0).all()


def test_columns_become_a_data_frame(monkeypatch):
    made = []
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda columns: made.append(columns) or "frame"))
    columns = verbatim.simulate("sequencer", design="spec-s0", clients=2, duration="50us")
    assert columns.to_pandas() == "frame"
    assert made == [dict(columns)]


def test_the_notebook_runs(capsys):
    notebook = json.loads((EXAMPLES / "workbench.ipynb").read_text())
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names = {"__name__": "__main__"}
    for cell in code:
        exec(compile(cell, "workbench.ipynb", "exec"), names)
    said = capsys.readouterr().out
    assert "weights arrived" in said and "M/s" in said
    # The last value of a cell is shown as a table.
    assert "<table>" in names["columns"]._repr_html_()

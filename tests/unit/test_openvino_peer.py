"""The peer that runs an exported network in OpenVINO, which isn't installed here."""

import importlib
import sys
import types

import pytest


@pytest.mark.parametrize("steps", ["1", "25", "0"])
def test_the_timed_batches_can_be_divided_into_thirds(monkeypatch, capsys, steps):
    monkeypatch.setitem(sys.modules, "openvino", types.ModuleType("openvino"))
    peer = importlib.import_module("eval.lab.openvino_model")
    monkeypatch.setattr(
        sys, "argv", ["openvino_model.py", "EXPORT", f"--steps={steps}"]
    )
    with pytest.raises(SystemExit) as ended:
        peer.main()
    assert ended.value.code == 2
    message = "--steps must be a multiple of 3, above 0"
    assert f"{message}; got {steps}" in capsys.readouterr().err

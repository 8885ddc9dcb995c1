"""Every example of the README runs as it stands, and says what it claims."""

import re
from pathlib import Path

import numpy as np
import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(EXAMPLES[number], f"README example {number}", "exec"), names)
    if hasattr(names.get("model"), "stream_"):
        assert np.isfinite(names["model"].log_evidence_)
        assert np.mean(np.abs(names["y"][400:] - names["mean"]) < 1.96 * names["std"]) > 0.85
        return
    result = next(names[name] for name in ("result", "state", "vi", "event") if name in names)
    assert result.posterior.is_proper()
    assert np.isfinite(result.free_energy if "event" in names else result.log_evidence)


def test_there_is_one_for_each_user_and_one_for_networks_and_processes():
    assert len(EXAMPLES) == 5
    assert all(len([line for line in example.splitlines() if line.strip()]) <= 15 for example in EXAMPLES)


def test_links_lead_somewhere():
    root = Path(__file__).parents[1]
    local = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert local
    assert [link for link in local if not (root / link).exists()] == []

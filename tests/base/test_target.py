"""Targets through JSON: the same machine comes back, with the same fingerprint. And how many cores
this machine has for us.
"""

import json
import os
from pathlib import Path

import pytest

import tilesmith as ts
from tilesmith.base import target as target_module
from tilesmith.base.target import NAMED, container_cores


@pytest.mark.parametrize("target", [ts.cpu(), ts.cpu().with_cores(3), *NAMED.values()])
def test_a_target_survives_json(target):
    again = ts.Target.from_json(target.to_json())
    assert again == target
    assert again.fingerprint == target.fingerprint
    assert again.to_json() == target.to_json()


def test_a_field_that_is_not_named_has_its_default():
    values = json.loads(ts.Target.named("neoverse-n1").to_json())
    del values["warp_size"]
    assert ts.Target.from_json(json.dumps(values)) == ts.Target.named("neoverse-n1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ("[1]", "not the text of a target"),
        ("{}", "features"),
        ('{"features": []}', "kind"),
        ('{"kind": "cpu", "arch": "x", "cpu": "y", "features": [], "wheels": 4}', "wheels"),
        ('{"kind": "cpu", "arch": "x", "cpu": 3, "features": []}', r"cpu=3\)"),
    ],
)
def test_other_text_is_refused(text, says):
    with pytest.raises(ts.TargetError, match=says):
        ts.Target.from_json(text)


def test_no_more_cores_than_the_machine_has() -> None:
    many = 10**6
    with pytest.raises(ts.TargetError, match=rf"num_cores is {many}, .*with_cores\({many}\)"):
        ts.cpu(num_cores=many)
    assert ts.cpu().with_cores(many).num_cores == many


def test_the_number_of_threads_by_variable_and_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESMITH_NUM_THREADS", "1")
    assert ts.cpu().num_cores == 1
    monkeypatch.setenv("TILESMITH_NUM_THREADS", str(10**6))  # no more than there are
    assert ts.cpu().num_cores == os.cpu_count()
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("TILESMITH_NUM_THREADS", wrong)
        with pytest.raises(ts.TargetError, match=f"TILESMITH_NUM_THREADS is '{wrong}'; it must"):
            ts.cpu()
    try:
        ts.set_num_threads(1)  # goes before the variable
        assert ts.cpu().num_cores == 1
    finally:
        ts.set_num_threads(None)
    monkeypatch.delenv("TILESMITH_NUM_THREADS")
    for count in (0, -1, 10**6):
        with pytest.raises(ts.TargetError, match=f"num_threads is {count}; this machine has 1 to"):
            ts.set_num_threads(count)
    assert ts.cpu().num_cores <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/a\n", {"a/cpu.max": "50000 100000", "cpu.max": "800000 100000"}, 1),
        ("4:cpu,cpuacct:/x\n0::/\n", {"cpu/x/cpu.cfs_quota_us": "400000\n",
                                      "cpu/x/cpu.cfs_period_us": "100000\n"}, 4),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("7:memory:/x\n", {"cpu/x/cpu.cfs_quota_us": "1"}, None),
        ("0::/\n", {"cpu.max": "what?"}, None),
        ("", {}, None),
    ],
)  # fmt: skip
def test_the_quota_of_a_container(
    groups: str, files: dict[str, str], cores: int | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "groups").write_text(groups)
    found = container_cores(str(tmp_path), str(tmp_path / "groups"))
    assert found == cores if cores is not None else found > 10**5
    assert container_cores(str(tmp_path), str(tmp_path / "nowhere")) > 10**5


def test_a_container_limits_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "container_cores", lambda: 1)
    assert ts.cpu().num_cores == 1

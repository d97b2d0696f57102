"""Targets through JSON: the same machine comes back, with the same fingerprint."""

import json

import pytest

import tilesmith as ts
from tilesmith.base.target import NAMED


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

from __future__ import annotations

import json
import re

import pytest
from tvm.target import Target, codegen

from bcd_registry.errors import ConfigError
from bcd_tuner import targets
from bcd_tuner.environment import calibration_ms, current_environment
from bcd_tuner.targets import canonical_target, isa_features, resolve_target, target_json, usable_cores


def test_native_names_this_cpu() -> None:
    target = resolve_target("native")
    assert target.attrs["mcpu"] == codegen.llvm_get_system_cpu()
    assert target.attrs["num-cores"] == usable_cores()


@pytest.mark.parametrize("text", ["x86-64-v2", '{"kind": "llvm", "mcpu": "x86-64-v2"}', "llvm -mcpu=x86-64-v2", " x86-64-v2 "])
def test_one_target_in_several_spellings(text: str) -> None:
    expected = {"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 3}
    assert canonical_target(resolve_target(text, cores=3)) == expected


def test_cores_come_from_the_target_then_from_the_argument() -> None:
    text = '{"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 5}'
    assert resolve_target(text).attrs["num-cores"] == 5
    assert resolve_target(text, cores=1).attrs["num-cores"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x86-64-v33", "did you mean x86-64-v3"),
        ("natve", "did you mean native"),
        ("", "is not a target"),
        ('{"kind": "llvm", "mcpu": "skylak"}', "did you mean skylake"),
        ('{"kind": "nonsense"}', '"nonsense" is not defined'),
        ('{"kind": "llvm", "colour": 1}', "colour"),
        ('{"mcpu": "skylake"}', "no `kind`"),
        ("[]", "is not a target"),
        ('{"kind"', "not JSON"),
        ("llvm mcpu=skylake", "-name=value"),
        ("pentium", "32-bit"),
        ("llvm -num-cores=0", "num-cores"),
        ('{"kind": "llvm", "num-cores": -1}', "num-cores"),
    ],
)
def test_what_is_no_target_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_target(text)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_target_beyond_this_cpu_is_refused_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        targets, "host_features", lambda: frozenset(isa_features(Target({"kind": "llvm", "mcpu": "x86-64-v3"})))
    )
    assert resolve_target("x86-64-v3").attrs["mcpu"] == "x86-64-v3"
    with pytest.raises(ConfigError, match="lacks avx512bw, avx512cd, avx512dq, avx512f, avx512vl"):
        resolve_target("x86-64-v4")


def test_native_leaves_out_what_a_virtual_machine_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: "x86-64-v4")
    shown = frozenset(isa_features(Target({"kind": "llvm", "mcpu": "x86-64-v4"}))) - {"avx512dq"}
    monkeypatch.setattr(targets, "host_features", lambda: shown)
    target = resolve_target("native")
    assert list(target.attrs["mattr"]) == ["-avx512dq"]
    assert set(isa_features(target)) == shown


def test_features_are_instructions_not_preferences() -> None:
    features = isa_features(Target({"kind": "llvm", "mcpu": "x86-64-v4"}))
    assert {"64bit", "avx2", "avx512f", "bmi2", "fma", "sse4.2"} <= set(features)
    assert list(features) == sorted(features)


X86_PREFERENCES = re.compile(r"(prefer|fast|slow|tuning|false|no|use|allow|branch|macro|lea|idiv|pad|sbb|vzero|er|fsr)\S*")
ARM_PREFERENCES = re.compile(
    r"(fuse|use|avoid|disable|slow|zc|aggressive|enable|balance|force|predictable|max|alu|addr|arith|cmp)\S*"
)
ARM_FAMILIES = re.compile(r"(a\d\d|apple|neoverse|cortex|thunderx|ampere|exynos|kryo|falkor|saphira|tsv|oryon|carmel|c1-)\S*")


@pytest.mark.parametrize(
    ("triple", "wanted", "unwanted"),
    [
        ("x86_64-linux-gnu", "avx512vnni", X86_PREFERENCES),
        ("aarch64-linux-gnu", "sve2", ARM_PREFERENCES),
        ("aarch64-linux-gnu", "dotprod", ARM_FAMILIES),
        ("arm64-apple-macos", "fullfp16", ARM_FAMILIES),
    ],
)
def test_no_cpu_has_a_preference_or_a_family_for_a_feature(triple: str, wanted: str, unwanted: re.Pattern[str]) -> None:
    found = set()
    for cpu in map(str, codegen.llvm_get_cpu_archlist(Target({"kind": "llvm", "mtriple": triple}))):
        found |= set(isa_features(Target({"kind": "llvm", "mtriple": triple, "mcpu": cpu})))
    assert wanted in found
    assert not [feature for feature in found if unwanted.fullmatch(feature)]


def test_what_only_systems_use_is_no_feature() -> None:
    features = isa_features(Target({"kind": "llvm", "mcpu": "sapphirerapids"}))
    assert {"amx-bf16", "avx512fp16"} <= set(features)
    assert not {"clwb", "clflushopt", "movdir64b", "invpcid", "xsaves", "rdseed", "waitpkg"} & set(features)


def test_a_canonical_target_makes_the_same_target_again() -> None:
    target = resolve_target('{"kind": "llvm", "mcpu": "x86-64-v3", "mattr": ["-fma"]}', cores=2)
    again = Target(json.loads(target_json(target)))
    assert canonical_target(again) == canonical_target(target)
    assert list(canonical_target(target)) == ["kind", "mattr", "mcpu", "num-cores"]


def test_environment_is_plain_json_and_the_same_each_time() -> None:
    target = resolve_target("native", cores=2)
    first, second = (current_environment(target, {"repeat": 3}).as_json() for _ in range(2))
    assert json.loads(json.dumps(first)) == first
    names = {"tvm", "tvm_ffi", "llvm", "target", "isa", "cores", "measurement", "cpu_model", "calibration_ms", "load"}
    assert set(first) == names
    noted = {"calibration_ms", "load"}
    assert {k: first[k] for k in names - noted} == {k: second[k] for k in names - noted}
    assert 0 < calibration_ms() < 100

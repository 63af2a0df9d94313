"""The number of cores counts the processor time that a container has."""

from pathlib import Path

import pytest

from tvm_forest.system import cores

UNIFIED = "0::/kubepods/pod7/box\n"
OLDER = "4:cpuset:/\n3:cpu,cpuacct:/docker/7\n1:name=systemd:/\n0::/\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    "groups, quotas, share",
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        (UNIFIED, {"kubepods/pod7/box/cpu.max": "400000 100000"}, 4),
        (UNIFIED, {"kubepods/cpu.max": "50000 100000", "kubepods/pod7/box/cpu.max": "max 1"}, 0.5),
        (UNIFIED, {"cpu.max": "300000 100000"}, 3),  # the group is mounted as the root
        (OLDER, {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 2.5),
        (OLDER, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        (
            OLDER,
            {
                "cpu,cpuacct/docker/7/cpu.cfs_quota_us": "100000",
                "cpu,cpuacct/docker/7/cpu.cfs_period_us": "50000",
            },
            2,
        ),
        ("0::/\n", {}, None),
        ("damaged\n1:cpu\n\n", {"cpu.max": "100000 100000"}, None),
        ("0::/\n", {"cpu.max": "100000"}, None),
        ("0::/\n", {"cpu.max": "\x00\xff"}, None),
    ],
)
def test_a_quota_is_read(tmp_path, groups, quotas, share):
    files = {f"sys/fs/cgroup/{name}": text for name, text in quotas.items()}
    assert cores.read_quota(write(tmp_path, {"proc/self/cgroup": groups, **files})) == share


def test_a_system_without_control_groups_has_no_quota(tmp_path):
    assert cores.read_quota(tmp_path) is None


@pytest.mark.parametrize("share, expected", [(None, 8), (0.2, 1), (1.5, 2), (4.0, 4), (64.0, 8)])
def test_cores_are_those_of_the_mask_and_of_the_quota(monkeypatch, share, expected):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8), raising=False)
    monkeypatch.setattr(cores, "read_quota", lambda: share)
    cores.most_cores.cache_clear()
    assert cores.available_cores() == expected
    cores.most_cores.cache_clear()

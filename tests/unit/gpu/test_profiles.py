"""Card profiles."""

from __future__ import annotations

import dataclasses

import pytest

from nvshare.gpu import profiles


@pytest.mark.parametrize("name", ["T4", "A100-40G", "A100-80G", "H100", "H200"])
def test_every_card_has_figures_that_make_sense(name: str) -> None:
    profile = profiles.load(name)
    assert profile.name == name
    assert 0 < profile.context_bytes < profile.memory_bytes
    assert profile.pageable_h2d < profile.link_duplex < profile.link_h2d
    assert profile.pageable_d2h < profile.link_duplex < profile.link_d2h
    assert profile.fault_bandwidth < profile.prefetch_d2h < profile.prefetch_h2d < profile.link_h2d
    assert profile.host_register_per_gib < profile.host_alloc_per_gib
    assert 0.5 < profile.timeslice_efficiency <= 1
    for field in dataclasses.fields(profile):
        assert type(getattr(profile, field.name)).__name__ == field.type


def test_the_measured_figures_of_the_t4() -> None:
    t4 = profiles.load("T4")
    assert (t4.memory_bytes, t4.context_bytes) == (14913 << 20, 1009 << 20)
    assert 1 / t4.kernel_seconds(12 * 28000**2) == pytest.approx(25.8, rel=0.002)
    assert 1 / t4.kernel_seconds(12 * 14000**2) == pytest.approx(103, rel=0.002)


def test_the_measured_figures_of_the_h200() -> None:
    h200 = profiles.load("H200")
    assert (h200.prefetch_h2d, h200.prefetch_d2h, h200.fault_bandwidth) == (46e9, 10.5e9, 9e9)
    assert (h200.host_register_per_gib, h200.host_alloc_per_gib) == (0.06, 0.55)
    # 256 handles of 32 MiB: create, map and access; unmap and release
    assert 256 * (h200.mem_create + h200.mem_map + h200.mem_set_access) == pytest.approx(0.010, rel=0.02)
    assert 256 * (h200.mem_unmap + h200.mem_release) == pytest.approx(0.010, rel=0.02)
    # checkpoints of a process without memory, with 2 GiB, with 8 GiB: out and in
    measured = ((0, (0.45, 0.49), (0.23, 0.29)), (2, (1.5, 1.6), (0.65, 0.7)), (8, (4.4, 4.9), (1.9, 2.0)))
    for gib, out, back in measured:
        assert out[0] <= h200.checkpoint_out + gib * 2**30 / h200.checkpoint_d2h <= out[1]
        assert back[0] <= h200.checkpoint_in + gib * 2**30 / h200.checkpoint_h2d <= back[1]
    assert h200.checkpointed_bytes == 4 << 20


def test_a_kernel_is_bound_by_memory_or_by_arithmetic() -> None:
    h200 = profiles.load("H200")
    assert h200.kernel_seconds(0) == h200.launch_overhead
    assert h200.kernel_seconds(h200.memory_bandwidth, h200.flops / 2) == pytest.approx(1, rel=1e-5)
    assert h200.kernel_seconds(h200.memory_bandwidth, h200.flops * 3) == pytest.approx(3, rel=1e-5)


def test_scaling_changes_links_and_kernels_and_nothing_else() -> None:
    t4 = profiles.load("T4")
    scaled = t4.scaled(link=0.5, kernel=2.0)
    assert scaled.link_h2d == t4.link_h2d / 2
    assert scaled.pageable_d2h == t4.pageable_d2h / 2
    assert scaled.prefetch_h2d == t4.prefetch_h2d / 2
    assert scaled.host_register_per_gib == t4.host_register_per_gib
    assert scaled.kernel_seconds(1e9) - t4.launch_overhead == pytest.approx(2 * 1e9 / t4.memory_bandwidth)
    assert scaled.memory_bytes == t4.memory_bytes
    assert t4.scaled() == t4
    with pytest.raises(ValueError, match="greater than 0"):
        t4.scaled(link=0)


@pytest.mark.parametrize(
    ("spec", "count", "name"), [("2xT4", 2, "T4"), ("8xA100-80G", 8, "A100-80G"), ("h200", 1, "H200")]
)
def test_nodes_are_written_as_count_and_card(spec: str, count: int, name: str) -> None:
    assert profiles.parse_node(spec) == (count, profiles.load(name))


@pytest.mark.parametrize("spec", ["", "0xT4", "17xT4", "2x", "2xT5", "-1xT4", "x", "2 x T4", "../../etc"])
def test_other_specs_are_refused_with_the_known_cards(spec: str) -> None:
    with pytest.raises(ValueError, match=r"A100-40G, A100-80G, H100, H200, T4"):
        profiles.parse_node(spec)

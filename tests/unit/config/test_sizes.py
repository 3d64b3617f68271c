from __future__ import annotations

import pytest

from nvshare.config import MAX_SIZE, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4Gi", 2**32), ("4GiB", 2**32), ("4G", 4 * 10**9), ("4GB", 4 * 10**9), ("4gib", 2**32), (" 4 GiB ", 2**32),
        ("512Mi", 2**29), ("1.5Gi", 3 * 2**29), ("0.5G", 5 * 10**8), ("1024", 1024), ("1B", 1), ("1K", 1000),
        ("1Ki", 1024), ("2TiB", 2**41), ("1Pi", 2**50), ("64Pi", MAX_SIZE),
    ],
)  # fmt: skip
def test_sizes_have_binary_and_decimal_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "4X", "Gi", "-1Gi", "4GiBs", "1e9", "0", "0Gi", "65Pi", "9" * 30, "4,5Gi", "٤Gi", "nan", "0x10"]
)
def test_what_is_no_size_is_refused_with_both_forms(text):
    with pytest.raises(ValueError, match=r"4Gi or 4GiB .* 4G or 4GB"):
        parse_size(text)


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (2**32, "4.0 GiB"), (3 * 2**19, "1.5 MiB")])
def test_sizes_are_shown_in_binary_units(size, text):
    assert format_size(size) == text

"""`flashgen explain` with tensors from files, and the tiles that it saves."""

import json

import numpy as np
import pytest

from flashgen.cli import check as checking

SPEC = """
dtype: float16
head_dim: 64
mask: causal & (ids[b, kv_idx] == ids[b, q_idx])
tensors: {ids: {shape: [b, kv_len], dtype: int32}}
block: {m: 64, n: 64}
"""
LISTS = """
dtype: float16
head_dim: 64
blocks: {m: 128, n: 64, lists: idx}
block: {m: 128, n: 64}
"""


def test_the_mask_is_that_of_the_tensors(flashgen, tmp_path):
    (tmp_path / "documents.yaml").write_text(SPEC)
    np.save(tmp_path / "ids.npy", np.int32([[*[0] * 128, *[1] * 128]]))
    given = ("explain", tmp_path / "documents.yaml", "--arch", "sm_90a", "--q-len", 256, "--tensor", f"ids={tmp_path / 'ids.npy'}")
    ran = flashgen(*given, "--tiles", tmp_path / "tiles.npy")
    assert ran.code == 0, ran.err
    expected = [[1, 0, 0, 0], [2, 1, 0, 0], [0, 0, 1, 0], [0, 0, 2, 1]]
    np.testing.assert_array_equal(np.load(tmp_path / "tiles.npy"), expected)
    assert "10 empty (62.5%), 4 partial (25.0%), 2 full (12.5%)" in ran.out


def test_lists_are_tensors_too(flashgen, tmp_path):
    (tmp_path / "listed.yaml").write_text(LISTS)
    np.save(tmp_path / "idx.npy", np.int32([[[[3, 0], [-1, 2]]]]))
    given = ("explain", tmp_path / "listed.yaml", "--arch", "sm_80", "--q-len", 256, "--tensor", f"idx={tmp_path / 'idx.npy'}")
    ran = flashgen(*given, "--tiles", tmp_path / "tiles.npy")
    assert ran.code == 0, ran.err
    np.testing.assert_array_equal(np.load(tmp_path / "tiles.npy"), [[2, 0, 0, 2], [0, 0, 0, 0]])


@pytest.mark.parametrize(
    ("x", "name", "message"),
    [
        (np.zeros((1, 256), np.int64), "ids", "ids is int64, the spec says int32 [b, kv_len]"),
        (np.zeros(256, np.int32), "ids", "ids has 1 axes"),
        (np.zeros((1, 255), np.int32), "ids", "ids has 255 of kv_len, which is 256"),
        (np.zeros((1, 256), np.int32), "id", "no tensor is called 'id'; did you mean 'ids'?"),
        (None, "ids", "holds no array"),
    ],
)
def test_what_does_not_fit_is_told(flashgen, tmp_path, x, name, message):
    (tmp_path / "documents.yaml").write_text(SPEC)
    path = tmp_path / "x.npy"
    path.write_text("nothing") if x is None else np.save(path, x)
    ran = flashgen("explain", tmp_path / "documents.yaml", "--q-len", 256, "--tensor", f"{name}={path}")
    assert (ran.code, ran.out) == (2, "")
    assert message in " ".join(ran.err.split())


def test_check_takes_the_tensors_of_a_caller(flashgen, tmp_path, monkeypatch):
    (tmp_path / "documents.yaml").write_text(SPEC)
    np.save(tmp_path / "ids.npy", np.int32([[*[0] * 100, *[1] * 30], [2] * 130]))
    given = ("check", tmp_path / "documents.yaml", "--arch", "host", "--tensor", f"ids={tmp_path / 'ids.npy'}", "--json")
    ran = flashgen(*given)
    assert ran.code == 0, ran.err
    (one,) = json.loads(ran.out)["shapes"]
    assert [one[name] for name in ("data", "batch", "q_len", "kv_len", "heads", "kv_heads")] == ["given", 2, 130, 130, 2, 1]
    seen = []
    right = checking.interpret
    monkeypatch.setattr(checking, "interpret", lambda *said: seen.append(said[4]["ids"]) or right(*said))
    flashgen(*given)
    assert all((ids == np.load(tmp_path / "ids.npy")).all() for ids in seen)


def test_check_tells_lists_and_what_does_not_fit(flashgen, tmp_path):
    (tmp_path / "listed.yaml").write_text(LISTS)
    np.save(tmp_path / "idx.npy", np.int32([[[[3, 0], [-1, 2]]]]))
    given = ("check", tmp_path / "listed.yaml", "--arch", "host", "--tensor", f"idx={tmp_path / 'idx.npy'}")
    assert "give --q-len" in " ".join(flashgen(*given).err.split())
    assert flashgen(*given, "--q-len", 200).code == 0
    assert "idx has 2 of q_len / 128, which is 3" in " ".join(flashgen(*given, "--q-len", 300).err.split())

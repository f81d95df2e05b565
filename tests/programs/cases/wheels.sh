# title: NumPy, polars, orjson (wheels from PyPI)
# version: PYTHONPATH=/wheels python3 -c 'import numpy, polars, orjson; print("numpy", numpy.__version__, "polars", polars.__version__, "orjson", orjson.__version__)'
# timeout: 300
# needs: wheels
export PYTHONPATH=/wheels OPENBLAS_NUM_THREADS=2 POLARS_MAX_THREADS=2
cat >t.py <<'END'
import numpy as np, polars as pl, orjson
r = np.random.default_rng(7)
a = r.standard_normal((200, 200)); b = r.integers(0, 100, 100000)
print(np.allclose(a @ np.linalg.inv(a), np.eye(200)), np.round(np.linalg.svd(a, compute_uv=False)[:3], 6), np.round(np.linalg.eigvalsh(a + a.T)[:3], 6))
print(np.sort(b)[::20000], b.sum(), np.unique(b).size, np.bincount(b)[:5], np.round(np.abs(np.fft.fft(a[0]))[:4], 8))
x = np.linspace(0.1, 3, 1001)
for f in (np.sin, np.exp, np.log, np.tanh, np.sqrt, np.cbrt, np.arctan): print(f.__name__, np.round(f(x).sum(), 9), np.round(f(x.astype("f4")).sum(dtype="f8"), 3))
print(np.float16(1.1) * np.arange(9, dtype=np.float16), np.packbits(b[:64] > 50), np.char.upper(np.array(["ab", "cd"])))
print(x.astype("f2").sum(dtype="f8"), (x * 1000).astype("i1")[:5], np.array([1e20, -1e20, 2.7]).astype("f4"), np.datetime64("2026-01-01") + np.arange(3))
n = 200000
d = pl.DataFrame({"k": [i * 7919 % 101 for i in range(n)], "v": [float(i % 1000) for i in range(n)], "s": [f"x{i % 37}" for i in range(n)]})
print(d.group_by("k").agg(pl.col("v").sum(), pl.len(), pl.col("s").n_unique()).sort("k").head(3).rows())
print(d.lazy().filter(pl.col("v") > 500).with_columns((pl.col("v") * 2).alias("w")).sort("w", "k", descending=True).head(2).collect().rows())
print(d.join(d.group_by("s").agg(pl.col("v").mean().alias("m")), on="s").select(pl.col("m").sum().round(6)).item(), d["s"].str.contains("3$").sum(), d["v"].quantile(0.9))
d.write_parquet("t.parquet"); d.write_csv("t.csv"); print(pl.read_parquet("t.parquet").equals(d), pl.read_csv("t.csv").shape, d.write_json()[:60])
o = {"a": [1, 2.5, None, True, "ü" * 5], "b": {str(i): i for i in range(1000)}}
print(orjson.loads(orjson.dumps(o)) == o, len(orjson.dumps(np.arange(1000.0), option=orjson.OPT_SERIALIZE_NUMPY)))
END
python3 t.py

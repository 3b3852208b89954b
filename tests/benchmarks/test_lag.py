import pytest

from benchmarks import lag


@pytest.mark.slow
@pytest.mark.multiprocess
def test_every_update_of_a_run_reaches_the_follower(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    results = lag.measure(num_rows=120_000, delta_secs=0.2)
    assert results["rows"] == 120_000
    assert results["never_seen"] == 0
    assert results["saves_followed"] >= 1
    lags = results["lag_secs"]
    assert 0 < lags["p50"] <= lags["p90"] <= lags["p99"] <= lags["max"]
    assert results["p99_over_delta_secs"] == pytest.approx(lags["p99"] / 0.2, abs=0.01)
